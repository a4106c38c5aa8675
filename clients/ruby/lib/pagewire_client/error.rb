# frozen_string_literal: true

require "google/protobuf/well_known_types"
require "google/rpc/error_details_pb"
require "google/rpc/status_pb"

module PagewireClient
  Violation = Struct.new(:field, :description)

  # A failed call: its gRPC status and what google.rpc details say about it.
  class Error < StandardError
    # code: one of GRPC::Core::StatusCodes. violations: all fields of the request that are wrong. reason: one of
    # docs/api.md, empty if none was told. retry_after: seconds, nil if the server did not say.
    attr_reader :code, :violations, :reason, :retry_after

    def self.from(status)
      packed = status.metadata["grpc-status-details-bin"]
      new(status.code, status.details, packed ? Google::Rpc::Status.decode(packed).details : [])
    end

    def initialize(code, message, details)
      super(message)
      @code = code
      @violations = []
      @reason = ""
      details.each { |detail| read(detail) }
    end

    private

    def read(detail)
      if detail.is(Google::Rpc::BadRequest)
        found = detail.unpack(Google::Rpc::BadRequest).field_violations
        @violations.concat(found.map { |violation| Violation.new(violation.field, violation.description) })
      elsif detail.is(Google::Rpc::ErrorInfo)
        @reason = detail.unpack(Google::Rpc::ErrorInfo).reason
      elsif detail.is(Google::Rpc::RetryInfo)
        delay = detail.unpack(Google::Rpc::RetryInfo).retry_delay
        @retry_after = delay.seconds + delay.nanos / 1e9
      end
    end
  end
end
