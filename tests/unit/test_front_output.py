"""One output between its tokens and its caller."""

from array import array

import pytest
from pagewire.internal.v1 import worker_pb2
from support import toy_tokenizer as toy
from tokenizers import Tokenizer

from scheduler_svc.front.detokenizer import WindowDetokenizer
from scheduler_svc.front.output import Output
from scheduler_svc.front.stop_strings import StopMatcher, StopStrings

TOKENIZER = Tokenizer.from_buffer(toy.tokenizer_json())


@pytest.mark.parametrize("searched_before", range(6))
def test_tokens_up_to_a_stop_string_keep_their_log_probabilities(searched_before: int) -> None:
    """Whenever it is searched: a frame's log probabilities come behind all of its tokens."""
    output = Output(
        0,
        WindowDetokenizer(TOKENIZER, [], skip_special_tokens=True),
        StopMatcher(StopStrings(["DE"])),
        stop_token_ids=frozenset(),
        include_stop=False,
    )
    add = output.adder(lambda _: None)
    for place, token_id in enumerate(b"ABCDEFGH"):
        if place == 5:
            for known in range(searched_before):
                output.append_logprobs(logprobs_of(65 + known))
            output.scan()
        add(token_id)
    for known in range(searched_before, 8):
        output.append_logprobs(logprobs_of(65 + known))
    text, token_ids = output.take()
    assert (text, list(token_ids), output.num_to_stop) == ("ABC", list(b"ABCDE"), 5)
    assert output.take_logprobs(8).token_ids == array("i", list(b"ABCDE")).tobytes()


def logprobs_of(token_id: int) -> worker_pb2.RowLogprobs:
    return worker_pb2.RowLogprobs(width=1, token_ids=token_id.to_bytes(4, "little"), logprobs=bytes(4), ranks=bytes(4))
