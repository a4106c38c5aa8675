"""Continues a request whose stream broke, maybe at another front, from where its caller stands.

The scheduler tells the whole request anew under a key of ours: first (in its own time) a `resumed` event, around it the
tokens so far, then its endings and whatever follows. All that is noted until the event says what was asked for once;
then a `LiveRequest` takes over and hears it in the same order, leaving out what its caller has.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.endings import deadline_error, rejection_error
from scheduler_svc.front.errors import FrontError, InvalidRequestError
from scheduler_svc.front.live_request import LiveRequest
from scheduler_svc.front.preparation import resumed
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.service_state import ServiceState
from scheduler_svc.front.validation import check_resume
from scheduler_svc.front.waiting import within


class Resumption:
    """The link's `Sink` until the request is known."""

    def __init__(self, request: Any, link: SchedulerLink) -> None:
        """`request` is a ResumeGenerateRequest.

        Raises: InvalidRequestError.
        """
        violations = check_resume(request)
        if violations:
            raise InvalidRequestError(violations)
        self._positions = request.positions
        self._link = link
        self._heard: list[Callable[[LiveRequest], None]] = []
        self._submit: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._key = link.resume(request.request_id, self, CALLER.get().tenant)

    def adder(self, index: int) -> Callable[[int], None]:
        """Notes the tokens of one output, from its first on."""
        return lambda token_id: self._heard.append(lambda live: live.adder(index)(token_id))

    def slot(self, index: int) -> None:
        """There is none yet."""

    def add_logprobs(self, index: int, found: Any) -> None:
        """A request that asks for them cannot be resumed."""

    def apply(self, event: Any) -> None:
        """A RequestEvent."""
        kind = event.WhichOneof("event")
        if kind == "resumed" and not self._submit.done():
            self._submit.set_result(event.resumed.submit)
        elif kind == "rejected":
            self.fail(rejection_error(event.rejected, "request_id"))
        else:
            self._heard.append(lambda live: live.apply(event))

    def fail(self, error: FrontError) -> None:
        """There is nothing to continue."""
        if not self._submit.done():
            self._submit.set_exception(error)
        else:
            self._heard.append(lambda live: live.fail(error))

    async def live(self, state: ServiceState, *, deadline: float | None) -> LiveRequest:
        """The request, once the scheduler has told of it; `deadline` is on the loop's clock.

        Raises: FrontError.
        """
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        try:
            submit = await within(left, self._submit)
            prepared = resumed(submit, state.require_model())
            live = LiveRequest(prepared, self._link, deadline=deadline, key=self._key)
        except BaseException as error:
            self._link.cancel(self._key, broken=True)
            self._link.forget(self._key)
            if isinstance(error, asyncio.TimeoutError):
                raise deadline_error("queue") from None
            raise
        for position in self._positions:
            if position.index < submit.n:
                live.skip(
                    position.index,
                    position.num_received_tokens,
                    tail=position.received_tail,
                    finished=position.received_finished,
                )
        for tell in self._heard:
            tell(live)
        return live
