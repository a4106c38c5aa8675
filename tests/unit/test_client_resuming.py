"""When a broken stream is tried again."""

import grpc
import pytest
from pagewire.v1 import generation_pb2 as pb
from pagewire_client.errors import ServerError, UnavailableError
from pagewire_client.resuming import Resumption

BREAK = UnavailableError("gone", code=grpc.StatusCode.UNAVAILABLE)


def resumption(timeout: float | None, grace_ms: int = 60_000) -> Resumption:
    return Resumption(pb.GenerateRequest(scheduling={"resume_grace_ms": grace_ms}), timeout)


def test_attempts_are_further_and_further_apart() -> None:
    broken = resumption(None)
    assert [broken.delay_after(BREAK) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    broken.note(pb.GenerateResponse(delta={}))
    assert broken.delay_after(BREAK) == 0.1


def test_nobody_waits_behind_the_deadline() -> None:
    broken = resumption(0.5)
    delays = [broken.delay_after(BREAK) for _ in range(9)]
    assert delays[:2] == [0.1, 0.2]
    assert max(delays) <= 0.5
    late = resumption(0.0)
    assert (late.delay_after(BREAK), late.timeout()) == (0.0, 0.0)


def test_the_grace_ends_it_with_the_first_failure() -> None:
    broken = resumption(None, grace_ms=1)
    with pytest.raises(ServerError) as raised:
        broken.delay_after(BREAK)
    assert raised.value is BREAK
