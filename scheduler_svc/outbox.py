"""What waits to be sent to one front: new tokens merged by output, then events.

A front that does not read costs memory for its requests' token ids and endings, never more: nothing is queued by step,
and of progress only the newest of each kind is kept. Order kept: for each output its tokens, then its events.
"""

from array import array
from typing import Any

from scheduler_svc import codec
from scheduler_svc.codec import FrontEvent
from scheduler_svc.messages import Service

MAX_FRAME_TOKENS = 1024 * 1024


class Outbox:
    """``take`` builds frames; what was taken is given back with ``restore`` when it could not be sent."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, int], array[int]] = {}
        self._events: list[FrontEvent] = []
        self._progress: dict[tuple[int, str], FrontEvent] = {}
        self._replies: list[Any] = []
        self._service: Service | None = None
        self._unsent: bytes | None = None

    def __bool__(self) -> bool:
        return bool(
            self._unsent is not None
            or self._tokens
            or self._events
            or self._progress
            or self._replies
            or self._service is not None
        )

    def add_token(self, key: int, index: int, token_id: int) -> None:
        tokens = self._tokens.get((key, index))
        if tokens is None:
            self._tokens[key, index] = array("i", (token_id,))
        else:
            tokens.append(token_id)

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
        tokens = self._take_tokens()
        if self._tokens:
            return codec.front_frame(session, tokens=tokens)
        frame = codec.front_frame(
            session,
            service=self._service,
            tokens=tokens,
            events=[*self._progress.values(), *self._events],
            replies=self._replies,
        )
        self._service = None
        self._progress.clear()
        self._events.clear()
        self._replies.clear()
        return frame

    def restore(self, frame: bytes) -> None:
        """Keeps a frame that could not be sent; it is the next to go."""
        self._unsent = frame

    def _take_tokens(self) -> "dict[tuple[int, int], array[int]]":
        taken: dict[tuple[int, int], array[int]] = {}
        num_tokens = 0
        while self._tokens and num_tokens < MAX_FRAME_TOKENS:
            name = next(iter(self._tokens))
            taken[name] = self._tokens.pop(name)
            num_tokens += len(taken[name])
        return taken
