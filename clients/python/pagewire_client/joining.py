"""Joins a stream's events into a ``Generation``.

Invariant: the joined value equals what GenerateOnce returns for the same request; a stream without its summary never
becomes a value.
"""

from __future__ import annotations

from collections import defaultdict

import grpc

from .errors import InternalError
from .results import Delta, Event, Finished, Generation, Output, PromptLogprobs, Summary, TokenLogprob


class Joiner:
    """Takes events one by one."""

    def __init__(self) -> None:
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[tuple[TokenLogprob, ...]]] = defaultdict(list)
        self._prompt_logprobs: list[tuple[TokenLogprob, ...]] | None = None
        self._finished: dict[int, Finished] = {}
        self._summary: Summary | None = None

    def add(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, Delta):
            self._texts[event.index].append(event.text)
            self._token_ids[event.index].extend(event.token_ids)
            if event.logprobs is not None:
                self._logprobs[event.index].extend(event.logprobs)
        elif isinstance(event, PromptLogprobs):
            self._prompt_logprobs = self._prompt_logprobs or [()]
            self._prompt_logprobs.extend(event.logprobs)
        elif isinstance(event, Finished):
            self._finished[event.index] = event
        elif isinstance(event, Summary):
            self._summary = event

    def result(self, request_id: str) -> Generation:
        """The whole. Raises: InternalError if the stream ended without its summary or without ending an output."""
        has_all_ends = bool(self._finished) and self._texts.keys() <= self._finished.keys()
        if self._summary is None or not has_all_ends:
            raise InternalError("the stream ended early", code=grpc.StatusCode.DATA_LOSS)
        outputs = tuple(self._output(self._finished[index]) for index in sorted(self._finished))
        return Generation(
            request_id=request_id,
            outputs=outputs,
            summary=self._summary,
            prompt_logprobs=None if self._prompt_logprobs is None else tuple(self._prompt_logprobs),
        )

    def _output(self, end: Finished) -> Output:
        return Output(
            index=end.index,
            text="".join(self._texts[end.index]),
            token_ids=tuple(self._token_ids[end.index]),
            finish_reason=end.finish_reason,
            stop_reason=end.stop_reason,
            logprobs=tuple(self._logprobs[end.index]) if end.index in self._logprobs else None,
        )
