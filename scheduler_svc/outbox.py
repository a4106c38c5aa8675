"""What waits to be sent to one front: new tokens as two columns, then events.

A front that does not read costs twelve bytes for each of its requests' tokens, and their endings, never more: nothing
is queued by step, and of progress only the newest of each kind is kept. Order kept: for each output its tokens, then
its events.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from scheduler_svc import front_codec
from scheduler_svc.front_codec import FrontEvent, FrontLogprobs
from scheduler_svc.messages import Service

MAX_FRAME_TOKENS = 1024 * 1024


class Outbox:
    """``take`` builds frames; what was taken is given back with ``restore`` when it could not be sent."""

    def __init__(self) -> None:
        self._keys: array[int] = array("Q")
        self._token_ids: array[int] = array("i")
        self._logprobs: list[FrontLogprobs] = []
        self._events: list[FrontEvent] = []
        self._progress: dict[tuple[int, str], FrontEvent] = {}
        self._replies: list[Any] = []
        self._service: Service | None = None
        self._unsent: bytes | None = None

    def __bool__(self) -> bool:
        return bool(
            self._unsent is not None
            or self._keys
            or self._logprobs
            or self._events
            or self._progress
            or self._replies
            or self._service is not None
        )

    def add_tokens(self, keys: Sequence[int], token_ids: "array[int]") -> None:
        """Tokens, each with the key of its output."""
        self._keys.extend(keys)
        self._token_ids.extend(token_ids)

    def add_logprobs(self, key: int, content: bytes) -> None:
        """Log probabilities of an output's next token, after the token itself, or of its prompt."""
        self._logprobs.append(front_codec.output_logprobs(key, content))

    def add_event(self, event: FrontEvent) -> None:
        self._events.append(event)

    def add_progress(self, key: int, kind: str, event: FrontEvent) -> None:
        """Replaces an unsent event of the same kind."""
        self._progress[key, kind] = event

    def add_reply(self, reply: Any) -> None:
        self._replies.append(reply)

    def set_service(self, service: Service) -> None:
        self._service = service

    def take(self, session: int) -> bytes:
        """The next frame. If there are more tokens than a frame takes, everything else waits for a later one."""
        if self._unsent is not None:
            frame, self._unsent = self._unsent, None
            return frame
        keys, token_ids = self._keys[:MAX_FRAME_TOKENS], self._token_ids[:MAX_FRAME_TOKENS]
        del self._keys[:MAX_FRAME_TOKENS], self._token_ids[:MAX_FRAME_TOKENS]
        if self._keys:
            return front_codec.front_frame(session, keys=keys, token_ids=token_ids)
        frame = front_codec.front_frame(
            session,
            service=self._service,
            keys=keys,
            token_ids=token_ids,
            logprobs=self._logprobs,
            events=[*self._progress.values(), *self._events],
            replies=self._replies,
        )
        self._service = None
        self._progress.clear()
        self._logprobs.clear()
        self._events.clear()
        self._replies.clear()
        return frame

    def restore(self, frame: bytes) -> None:
        """Keeps a frame that could not be sent; it is the next to go."""
        self._unsent = frame
