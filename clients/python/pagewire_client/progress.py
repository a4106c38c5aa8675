"""A progress bar over the prompts of one call, on stderr; none where tqdm (extra ``cli``) is not installed."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .request_output import RequestOutput

if TYPE_CHECKING:
    from typing_extensions import Self


class Progress:
    """A context manager: counts prompts that ended and tells prompt and output tokens a second."""

    def __init__(self, num_prompts: int, *, shown: bool) -> None:
        self._num_prompts = num_prompts
        self._shown = shown and num_prompts > 0
        self._bar: Any = None
        self._began = time.monotonic()
        self._prompt_tokens = self._output_tokens = 0

    def skip(self, count: int) -> None:
        """So many prompts were refused before they ran."""
        if self._bar is not None:
            self._bar.update(count)

    def add(self, output: RequestOutput) -> None:
        """One more prompt ended."""
        if self._bar is None:
            return
        self._prompt_tokens += len(output.prompt_token_ids)
        self._output_tokens += sum(len(each.token_ids) for each in output.outputs)
        seconds = max(time.monotonic() - self._began, 1e-6)
        rates = f"prompt {self._prompt_tokens / seconds:.0f}, output {self._output_tokens / seconds:.0f} tokens/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        if self._shown:
            try:
                from tqdm import tqdm
            except ImportError:
                return self
            self._bar = tqdm(total=self._num_prompts, desc="prompts", dynamic_ncols=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
