"""Events are called in JSON what the API calls them."""

from pagewire.v1 import generation_pb2
from pagewire_client import Delta, Finished, FinishReason, Heartbeat, PromptLogprobs
from pagewire_client.cli.output import event_name


def test_names_of_events_are_those_of_the_api() -> None:
    finished = Finished(index=0, finish_reason=FinishReason.STOP, stop_reason=None)
    events = [
        Delta(index=0, text="", token_ids=()),
        finished,
        Heartbeat(),
        PromptLogprobs(first_position=1, logprobs=()),
    ]
    names = [event_name(event) for event in events]
    assert names == ["delta", "finished", "heartbeat", "prompt_logprobs"]
    assert set(names) <= {
        field.name for field in generation_pb2.GenerateResponse.DESCRIPTOR.oneofs_by_name["event"].fields
    }
