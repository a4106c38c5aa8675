# frozen_string_literal: true

require "grpc"
require "pagewire/v1/generation_services_pb"
require "pagewire/v1/model_services_pb"
require "pagewire_client/error"

module PagewireClient
  V1 = Pagewire::V1

  # A client of one server.
  #
  #   client = PagewireClient::Client.new("localhost:50051")
  #   client.stream(text: "Once upon a time", stop: { max_tokens: 40 }) { |event| print event.delta&.text }
  #
  # Requests are given as keywords by the names of pagewire.v1.GenerateRequest, parts of it as hashes. Every method takes
  # `timeout`, in seconds: the deadline of the request. Failures are PagewireClient::Error.
  class Client
    MAX_MESSAGE_BYTES = 16 << 20

    # `tls`: true for the system's authorities, or a hash of PEM texts {ca:, key:, cert:}. A token is sent as it is: use
    # TLS beyond this machine.
    def initialize(target = "127.0.0.1:50051", token: nil, tls: nil)
      options = { channel_args: { "grpc.max_receive_message_length" => MAX_MESSAGE_BYTES } }
      @generation = V1::GenerationService::Stub.new(target, credentials(tls), **options)
      @models = V1::ModelService::Stub.new(target, credentials(tls), **options)
      @metadata = token ? { "authorization" => "Bearer #{token}" } : {}
    end

    # Runs a request; returns a GenerateOnceResponse when all its outputs have ended.
    def generate(timeout: nil, **request)
      call { @generation.generate_once(V1::GenerateOnceRequest.new(request: build(request)), **settings(timeout)) }
    end

    # Runs a request and yields its events as they come; without a block returns an Enumerator. Leaving the block early
    # (break, an exception) cancels the request.
    def stream(timeout: nil, **request)
      return enum_for(:stream, timeout: timeout, **request) unless block_given?

      operation = @generation.generate(build(request), return_op: true, **settings(timeout))
      begin
        call { operation.execute.each { |event| yield event } }
      ensure
        operation.cancel
      end
    end

    # Ends a request from elsewhere.
    def cancel(request_id, timeout: nil)
      call { @generation.cancel_request(V1::CancelRequestRequest.new(request_id: request_id), **settings(timeout)) }
      nil
    end

    # What became of a request, also some time after its end.
    def get(request_id, timeout: nil)
      call { @generation.get_request(V1::GetRequestRequest.new(request_id: request_id), **settings(timeout)) }
    end

    # The token ids the model would see.
    def tokenize(text, timeout: nil)
      call { @generation.tokenize(V1::TokenizeRequest.new(text: text), **settings(timeout)) }.token_ids.to_a
    end

    # The served models.
    def list_models(timeout: nil)
      call { @models.list_models(V1::ListModelsRequest.new, **settings(timeout)) }.models.to_a
    end

    private

    def build(request)
      V1::GenerateRequest.new(**request)
    end

    def settings(timeout)
      { metadata: @metadata, deadline: timeout && Time.now + timeout }.compact
    end

    def call
      yield
    rescue GRPC::BadStatus => e
      raise Error.from(e)
    end

    def credentials(tls)
      case tls
      when nil, false then :this_channel_is_insecure
      when true then GRPC::Core::ChannelCredentials.new
      else GRPC::Core::ChannelCredentials.new(tls[:ca], tls[:key], tls[:cert])
      end
    end
  end
end
