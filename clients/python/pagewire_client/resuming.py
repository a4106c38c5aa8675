"""Where a stream with a resume grace stands, and how it goes on after it broke.

Decides whether a failure is worth another attempt, when to make it and what to ask for; the clients make the call.
Invariant: what is asked for continues exactly behind what was noted, so nothing is lost or repeated.
"""

from __future__ import annotations

import time
import uuid

import grpc
from pagewire.v1 import generation_pb2 as pb

from .errors import NotFoundError, ServerError

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 2.0


class Resumption:
    """Gives the request an id if it has none; ``note`` every message, ``delay_after`` every failure."""

    def __init__(self, request: pb.GenerateRequest, timeout: float | None) -> None:
        request.request_id = request.request_id or uuid.uuid4().hex
        self.request_id = request.request_id
        self._request = request
        self._grace_seconds = request.scheduling.resume_grace_ms / 1000
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._positions: dict[int, pb.ResumePosition] = {}
        self._give_up_at: float | None = None
        self._delay = _FIRST_DELAY_SECONDS
        self._failure: ServerError | None = None
        self.has_ended = False

    def note(self, message: pb.GenerateResponse) -> None:
        """A message arrived."""
        self._give_up_at, self._delay, self._failure = None, _FIRST_DELAY_SECONDS, None
        kind = message.WhichOneof("event")
        if kind == "delta":
            delta = message.delta
            position = self._position(delta.index)
            position.received_tail = delta.num_output_tokens == position.num_received_tokens
            position.num_received_tokens = delta.num_output_tokens
        elif kind == "finished":
            self._position(message.finished.index).received_finished = True
        elif kind == "summary":
            self.has_ended = True

    def _position(self, index: int) -> pb.ResumePosition:
        return self._positions.setdefault(index, pb.ResumePosition(index=index))

    def delay_after(self, error: ServerError) -> float:
        """Seconds until the next attempt, at the deadline at latest.

        Raises: ServerError, the first of this break, when there is no use in one.
        """
        now = time.monotonic()
        failure = self._failure = self._failure or error
        if isinstance(error, NotFoundError) or error.code is not grpc.StatusCode.UNAVAILABLE:
            raise failure if isinstance(error, NotFoundError) else error
        self._give_up_at = self._give_up_at or now + self._grace_seconds
        delay, self._delay = self._delay, min(_MAX_DELAY_SECONDS, self._delay * 2)
        if now + delay > self._give_up_at:
            raise failure
        return delay if self._deadline is None else min(delay, max(0.0, self._deadline - now))

    def timeout(self) -> float | None:
        """Seconds left of the request's deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def next_message(self) -> pb.GenerateRequest | pb.ResumeGenerateRequest:
        """What to ask for: the rest; or the request itself, which the server knows again, if nothing arrived."""
        if not self._positions:
            return self._request
        return pb.ResumeGenerateRequest(request_id=self.request_id, positions=self._positions.values())


def response_of(message: pb.GenerateResponse | pb.ResumeGenerateResponse) -> pb.GenerateResponse:
    """The event of a message of either method."""
    return message.response if isinstance(message, pb.ResumeGenerateResponse) else message
