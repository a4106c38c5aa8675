# frozen_string_literal: true

# Against a live server named by PAGEWIRE_TARGET that answers the ids 1, 2, 3 with "known" and counts for ever otherwise.

require "minitest/autorun"
require "pagewire_client"

class ClientTest < Minitest::Test
  Codes = GRPC::Core::StatusCodes
  KNOWN = { token_ids: { ids: [1, 2, 3] } }.freeze
  ENDLESS = { token_ids: { ids: [9, 9] }, stop: { max_tokens: 100_000 } }.freeze

  def setup
    @client = PagewireClient::Client.new(ENV.fetch("PAGEWIRE_TARGET"))
  end

  def failure(code, &block)
    error = assert_raises(PagewireClient::Error, &block)
    assert_equal code, error.code
    error
  end

  def test_a_whole_answer_equals_its_stream
    assert_equal "known", @client.generate(**KNOWN).outputs.first.text
    events = @client.stream(**KNOWN).to_a
    assert_equal "known", events.filter_map { |event| event.delta&.text }.join
    assert_equal [events.last], events.select(&:summary)
    assert_equal 3, events.last.summary.usage.prompt_tokens
  end

  def test_leaving_the_block_cancels_the_request
    id = nil
    deltas = 0
    @client.stream(**ENDLESS) do |event|
      id ||= event.request_id
      deltas += 1 if event.delta
      break if deltas == 3
    end
    sleep 0.01 until @client.get(id).state == :REQUEST_STATE_ENDED
    assert_equal 3, deltas
  end

  def test_cancelling_from_elsewhere
    finished = nil
    cancelled = false
    @client.stream(**ENDLESS) do |event|
      @client.cancel(event.request_id) unless cancelled
      cancelled = true
      finished ||= event.finished
    end
    assert_equal :FINISH_REASON_CANCELLED, finished.finish_reason
  end

  def test_the_timeout_is_the_requests_deadline
    failure(Codes::DEADLINE_EXCEEDED) { @client.generate(**ENDLESS, timeout: 0.2) }
  end

  def test_all_wrong_fields_are_named
    error = failure(Codes::INVALID_ARGUMENT) { @client.generate(**KNOWN, sampling: { temperature: -1, top_p: 2 }) }
    assert_equal %w[sampling.temperature sampling.top_p], error.violations.map(&:field).sort
  end

  def test_an_unknown_model_is_not_found_with_a_reason
    error = failure(Codes::NOT_FOUND) { @client.generate(**KNOWN, model: "nobody") }
    refute_empty error.reason
  end

  def test_models_and_tokens
    assert_operator @client.list_models.first.max_model_len, :>, 0
    refute_empty @client.tokenize("Hi")
  end
end
