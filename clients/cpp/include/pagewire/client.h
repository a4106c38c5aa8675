// A client of Pagewire, an LLM inference service over gRPC.
//
//   pagewire::Client client("localhost:50051");
//   pagewire::v1::GenerateRequest request;
//   request.set_text("Once upon a time");
//   auto stream = client.Stream(request);
//   while (auto event = stream.Next()) std::cout << event->delta().text();
//
// Failed calls throw pagewire::Error. A client may be used by several threads, a stream by one (Cancel by any).

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "pagewire/v1/generation.grpc.pb.h"
#include "pagewire/v1/model.grpc.pb.h"

namespace pagewire {

struct Violation {
  std::string field;
  std::string description;
};

// A failed call: its gRPC status and what google.rpc details say about it.
class Error : public std::runtime_error {
 public:
  explicit Error(const grpc::Status& status);

  grpc::StatusCode code() const { return code_; }
  // All fields of the request that are wrong.
  const std::vector<Violation>& violations() const { return violations_; }
  // One of docs/api.md; empty if none was told.
  const std::string& reason() const { return reason_; }
  // When to try again, if the server said.
  std::optional<std::chrono::milliseconds> retry_after() const { return retry_after_; }

 private:
  grpc::StatusCode code_;
  std::vector<Violation> violations_;
  std::string reason_;
  std::optional<std::chrono::milliseconds> retry_after_;
};

struct Options {
  // Bearer token; sent as it is, so use TLS beyond this machine.
  std::string token;
  // TLS if set; empty strings in it take the system's authorities.
  std::optional<grpc::SslCredentialsOptions> tls;
};

using Timeout = std::optional<std::chrono::milliseconds>;

// A running request. Its destruction cancels the request if it still runs.
class Stream {
 public:
  Stream(Stream&&) = default;
  ~Stream();

  // The next event; nothing after the summary. Throws Error if the request failed.
  std::optional<v1::GenerateResponse> Next();
  void Cancel();

 private:
  friend class Client;
  Stream(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader);

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  bool ended_ = false;
};

class Client {
 public:
  explicit Client(const std::string& target, Options options = {});

  // Runs a request; returns when all its outputs have ended. `timeout` is the request's deadline.
  v1::GenerateOnceResponse Generate(const v1::GenerateRequest& request, Timeout timeout = {});
  // Runs a request and gives its events as they come.
  class Stream Stream(const v1::GenerateRequest& request, Timeout timeout = {});
  // Ends a request from elsewhere.
  void Cancel(const std::string& request_id, Timeout timeout = {});
  // What became of a request, also some time after its end.
  v1::GetRequestResponse Get(const std::string& request_id, Timeout timeout = {});
  // The token ids the model would see.
  std::vector<std::uint32_t> Tokenize(const std::string& text, Timeout timeout = {});
  // The served models.
  std::vector<v1::Model> ListModels(Timeout timeout = {});

 private:
  std::unique_ptr<grpc::ClientContext> NewContext(Timeout timeout) const;

  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::ModelService::Stub> models_;
};

}  // namespace pagewire
