Gem::Specification.new do |spec|
  spec.name = "pagewire_client"
  spec.version = "0.1.0"
  spec.summary = "Client of Pagewire, an LLM inference service over gRPC"
  spec.authors = ["The Pagewire authors"]
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "README.md"]
  spec.add_dependency "grpc", ">= 1.51"
  spec.add_dependency "googleapis-common-protos-types", ">= 1.4"
end
