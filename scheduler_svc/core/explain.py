"""Says decisions as sentences, for people. Knows no ids but keys: ``name_of`` gives a request the name people know."""

from collections.abc import Callable
from typing import Final

from scheduler_svc.core.flight_recorder import Decision, What
from scheduler_svc.core.types import RequestKey

_SENTENCES: Final[dict[What, str]] = {
    What.SUBMITTED: "submitted with {first} prompt tokens; {second} requests waited already",
    What.PLACED: "waits for worker {first}",
    What.NO_ROW: "waits: all rows of the worker are taken",
    What.NO_PAGES: "waits: it needs {first} new pages; {second} are available, and prompts begun before may need them",
    What.NO_BUDGET: "waits: the step has its {first} tokens already",
    What.PAGES_COMING: "waits: {first} running requests get the next pages that come free",
    What.PAGE_CLAIMED: "waits: {first} is computing its next page",
    What.TOO_MANY_LOOKED_AT: "waits: enough requests were looked at in this step",
    What.STANDS: "stands behind {first} requests of its tenant; {second} of other tenants wait too",
    What.BEHIND: "the first in the queue is {first}, which",
    What.ADMITTED: "admitted on worker {second} with {first} tokens cached",
    What.RESUMED: "admitted again on worker {second} with {first} tokens cached",
    What.COMPUTES: "computes {first} tokens, {second} in all",
    What.FIRST_TOKEN: "first output token; decodes from now on",
    What.PREEMPTED: "preempted: {first}",
    What.HELD: "at its end after {first} output tokens; waits for the scan for stop strings",
    What.ENDED: "ended: {first}, {second} output tokens",
    What.FORGOT: "{first} decisions are not kept",
}


def sentence(decision: Decision, name_of: Callable[[RequestKey], str]) -> str:
    """What was decided and why."""
    first, second = decision.first, decision.second
    if decision.what is What.PLACED and first is None:
        return "waits: no worker can hold it"
    if decision.what in (What.PAGE_CLAIMED, What.BEHIND) and isinstance(first, int):
        first = name_of(RequestKey(first))
    text = _SENTENCES[decision.what].format(first=first, second=second)
    if decision.what is What.PREEMPTED and isinstance(second, int):
        text += f", to make room for {name_of(RequestKey(second))}"
    return text
