"""Which positions of prompts a step computes for rows that ask for their log probabilities.

The hidden state of the token before a position gives the position's distribution, so a chunk of the tokens ``[s, e)``
covers the positions ``s + 1`` to ``e``, as far as they lie in the prompt. The first position has none.
"""

from dataclasses import dataclass

import numpy as np

from gpu_worker.batch_plan import Int64s
from gpu_worker.logprobs import Asked
from gpu_worker.request_rows import RequestRows, StepWork


@dataclass(frozen=True, slots=True)
class PromptPositions:
    """N positions of a step without padding, in the order of its chunks."""

    asked: list[Asked]
    tokens: Int64s
    """int64 [N]: the packed tokens whose hidden states are wanted."""
    chosen: Int64s
    """int64 [N]: the prompt's own token at each position."""


def prompt_positions(rows: RequestRows, work: StepWork) -> PromptPositions | None:
    """Those of a step that ``advance`` has accounted for; None if there are none."""
    if not rows.options:
        return None
    order = np.argsort(work.chunk_tokens > 1, kind="stable")
    packed = len(work.decode_rows)
    asked, tokens, chosen = [], [], []
    for row, count in zip(work.chunk_rows[order].tolist(), work.chunk_tokens[order].tolist(), strict=True):
        options = rows.options.get(row)
        first = int(rows.num_computed[row]) - count + 1
        num_positions = min(count, int(rows.num_prompt_tokens[row]) - first)
        if options is not None and options.prompt_logprobs is not None and num_positions > 0:
            part = Asked(
                row=row,
                num_top=options.prompt_logprobs,
                first_position=first,
                num_prompt_positions=num_positions,
            )
            asked.append(part)
            tokens.append(np.arange(packed, packed + num_positions, dtype=np.int64))
            chosen.append(rows.known_ids[row][first : first + num_positions].astype(np.int64))
        packed += count
    return PromptPositions(asked, np.concatenate(tokens), np.concatenate(chosen)) if asked else None
