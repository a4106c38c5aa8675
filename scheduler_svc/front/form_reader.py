"""From the form a caller asks for to the grammar that a worker follows.

Making one blocks a thread, which waits for a process that tries it; a form that was asked for lately costs nothing.
"""

import asyncio
from concurrent.futures import Executor
from typing import Any

from scheduler_svc.front.endings import EARLY_SECONDS, deadline_error
from scheduler_svc.front.errors import InvalidRequestError
from scheduler_svc.front.grammar_pool import GrammarRefusedError
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.structured_output import form_of
from scheduler_svc.front.waiting import within


class FormReader:
    """Makes grammars for requests; one a process."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def read(self, structured: Any, model: ServedModel, *, deadline: float | None = None) -> str:
        """The grammar of a checked StructuredOutput; empty if any output will do.

        Raises: InvalidRequestError if there is none that can be followed; DeadlinePassedError.
        """
        form = form_of(structured)
        if form is None:
            return ""
        grammar = model.grammars.remembered(*form)
        if grammar is not None:
            return grammar
        loop = asyncio.get_running_loop()
        left = None if deadline is None else deadline - EARLY_SECONDS - loop.time()
        try:
            return await within(left, loop.run_in_executor(self._executor, model.grammars.make, *form))
        except GrammarRefusedError as error:
            raise InvalidRequestError.at(f"structured.{structured.WhichOneof('constraint')}", str(error)) from None
        except asyncio.TimeoutError:
            raise deadline_error("tokenize") from None
