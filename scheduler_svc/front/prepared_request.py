"""A checked request, ready to be submitted: the scheduler's `Submit` and what the front keeps for itself."""

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scheduler_svc.front.output import Output
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.stop_strings import StopMatcher, StopStrings

if TYPE_CHECKING:
    from scheduler_svc.front.tracing import RequestSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """One request. `submit` (pagewire.internal.v1.Submit) is complete but for its key and its remaining time."""

    request_id: str
    submit: Any
    model: ServedModel
    prompt: "array[int]"
    prompt_field: str
    """The field the prompt came in, for errors."""
    stops: StopStrings | None
    include_stop: bool
    min_tokens: int
    stop_token_ids: frozenset[int]
    skip_special_tokens: bool
    wants_text: bool
    wants_token_ids: bool
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    wants_prompt_token_ids: bool
    progress_events: bool
    max_delay_seconds: float
    span: "RequestSpan | None" = None
    """None: it is not traced."""

    def traced(self, span: "RequestSpan") -> "PreparedRequest":
        """The same with a span; the scheduler shall tell what becomes of it."""
        self.submit.progress_events = True
        return replace(self, span=span)

    def outputs(self) -> list[Output]:
        """A fresh output for each index."""
        first = None
        if self.wants_text or self.stops is not None:
            first = self.model.detokenizer(self.prompt, skip_special_tokens=self.skip_special_tokens)
        return [
            Output(
                index,
                first if first is None or index == 0 else first.copy(),
                None if self.stops is None else StopMatcher(self.stops),
                stop_token_ids=self.stop_token_ids,
                include_stop=self.include_stop,
                min_tokens=self.min_tokens,
            )
            for index in range(self.submit.n)
        ]
