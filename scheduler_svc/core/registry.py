"""All live requests, and the one place where a request ends.

Whatever ends a request (a token, the front, a limit, a fault) comes here: it is taken off its worker, leaves the
registry and is reported once. Invariant: a request is here exactly as long as it has not ended.
"""

from collections.abc import Iterator

from scheduler_svc.core.expiry import Expiry
from scheduler_svc.core.fairness import settle
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.prefix_history import PrefixHistory
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import Ended, EndReason, Event, Held, RequestKey


class Registry:
    """Live requests by key."""

    __slots__ = ("_expiry", "_history", "_num_held", "_placement", "_requests", "_tally")

    def __init__(self, placement: Placement, tally: Tally, history: PrefixHistory) -> None:
        self._requests: dict[RequestKey, Request] = {}
        self._placement = placement
        self._tally = tally
        self._history = history
        self._expiry = Expiry()
        self._num_held = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def newest_first(self) -> Iterator[Request]:
        """All of them."""
        return reversed(self._requests.values())

    @property
    def num_held(self) -> int:
        """Requests at their end that the front has to confirm."""
        return self._num_held

    def get(self, key: RequestKey) -> Request | None:
        """The live request of this key."""
        return self._requests.get(key)

    def add(self, request: Request) -> None:
        """Takes a new request."""
        self._requests[request.key] = request
        request.account.num_live += 1
        request.account.begin_wait(request.num_tokens)
        first = None if request.new.fork_of is None else self._requests.get(request.new.fork_of)
        if first is not None:
            request.family = first.family = first.family or [first]
            request.family.append(request)
        self._expiry.watch(request)

    def finish(self, request: Request, reason: EndReason, now: float, stop_token_id: int | None = None) -> Event:
        """A request is at its end by a token or by length: it ends, or is held until the front has scanned it."""
        request.stop_token_id = stop_token_id
        if not request.new.hold_endings:
            return self.end(request, reason, now)
        request.ending = reason
        self._placement.withdraw(request)
        request.move(State.HELD)
        self._num_held += 1
        return Held(key=request.key, num_output_tokens=len(request.output))

    def confirm(self, request: Request, now: float) -> list[Event]:
        """Ends a held request as it was going to; another one is left alone."""
        return [] if request.ending is None else [self.end(request, request.ending, now)]

    def stop_at(self, request: Request, num_output_tokens: int, now: float) -> Ended:
        """Ends a request by a stop string that its output token number ``num_output_tokens`` completed."""
        self._placement.collect(request)
        kept = min(max(num_output_tokens, 0), len(request.output))
        self._tally.num_wasted_tokens += len(request.output) - kept
        self._tally.num_cut_tokens += len(request.output) - kept
        request.stop_token_id = None
        return self.end(request, EndReason.STOP_STRING, now, kept)

    def end(self, request: Request, reason: EndReason, now: float, num_output_tokens: int | None = None) -> Ended:
        """Ends a request in whatever state it is; its first ``num_output_tokens`` tokens count, all by default."""
        stage = request.stage
        self._placement.withdraw(request)
        kept = len(request.output) if num_output_tokens is None else num_output_tokens
        if request.state is State.HELD:
            self._num_held -= 1
        request.move(State.ENDED)
        settle(request, kept)
        request.account.num_live -= 1
        del self._requests[request.key]
        if request.family:
            request.family.remove(request)
        self._expiry.note_gone(request)
        self._history.note(request)
        return Ended(
            key=request.key,
            reason=reason,
            num_prompt_tokens=request.num_prompt,
            num_cached_tokens=request.num_cached_tokens,
            num_output_tokens=kept,
            num_recomputed_tokens=request.num_recomputed_tokens,
            stop_token_id=request.stop_token_id if reason is EndReason.STOP_TOKEN else None,
            submitted_at=request.submitted_at,
            admitted_at=request.admitted_at,
            first_token_at=request.first_token_at,
            last_token_at=request.last_token_at,
            ended_at=now,
            worker_id=request.worker_id,
            stage=stage,
        )

    def next_expiry(self) -> float | None:
        """When the next request runs out of time."""
        return self._expiry.next()

    def expire(self, now: float) -> list[Event]:
        """Ends all requests that have run out of time."""
        events: list[Event] = []
        while (time := self._expiry.next()) is not None and time <= now:
            request, reason = self._expiry.pop()
            events.append(self.end(request, reason, now))
        return events
