"""How good and how fast a model is as it is served: perplexity of a text, and greedy tokens a second of one request.

Computed with the worker's own model and kernels, so that what is compared before and after quantising is what clients
get. One request at a time, on pages of its own.
"""

import math
import time
from collections.abc import Sequence

import torch
from pagewire_kernels import AttentionBatch, KernelSet

from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import PageShape, allocate_pages

_PAGE_SIZE = 32
_PROMPT_TOKENS = 16


class ModelQuality:
    """Measures one loaded model."""

    def __init__(self, model: LlamaModel, kernels: KernelSet, max_tokens: int) -> None:
        """``max_tokens`` bounds a request."""
        self._model = model
        self._kernels = kernels
        self._num_pages = -(-max_tokens // _PAGE_SIZE)
        self._kv_pages = allocate_pages(
            self._num_pages, PageShape.of(model.config, _PAGE_SIZE, model.dtype), model.device
        )

    def perplexity(self, token_ids: Sequence[int], window: int) -> float:
        """exp of the mean negative log likelihood of every token but the first of each window; windows do not overlap.

        Raises ValueError for fewer than two tokens.
        """
        total, count = 0.0, 0
        for start in range(0, len(token_ids), window):
            part = token_ids[start : start + window]
            if len(part) > 1:
                total += self._loss(part)
                count += len(part) - 1
        if count == 0:
            raise ValueError("a text of at least two tokens is needed")
        return math.exp(total / count)

    @torch.inference_mode()
    def tokens_per_second(self, token_ids: Sequence[int], num_tokens: int) -> float:
        """Greedy decoding after a short prompt, prompt not counted."""
        prompt = list(token_ids[:_PROMPT_TOKENS])
        token = self._next(prompt, 0)
        began = time.perf_counter()
        for position in range(len(prompt), len(prompt) + num_tokens):
            token = self._next([token], position)
        return num_tokens / (time.perf_counter() - began)

    @torch.inference_mode()
    def _loss(self, token_ids: Sequence[int]) -> float:
        """Sum of negative log likelihoods."""
        logits = self._logits(token_ids, 0, torch.arange(len(token_ids) - 1, device=self._model.device))
        targets = torch.tensor(token_ids[1:], dtype=torch.int64, device=self._model.device)
        return float(torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum"))

    def _next(self, token_ids: Sequence[int], start: int) -> int:
        last = torch.tensor([len(token_ids) - 1], device=self._model.device)
        return int(self._logits(token_ids, start, last)[0].argmax())

    def _logits(self, token_ids: Sequence[int], start: int, wanted: torch.Tensor) -> torch.Tensor:
        """Compute ids at positions from ``start`` on; logits of those at places ``wanted``."""
        device, count = self._model.device, len(token_ids)
        positions = torch.arange(start, start + count, dtype=torch.int32, device=device)
        batch = AttentionBatch(
            page_tables=torch.arange(self._num_pages, dtype=torch.int32, device=device)[None],
            query_starts=torch.tensor([0, count], dtype=torch.int32, device=device),
            kv_lens=torch.tensor([start + count], dtype=torch.int32, device=device),
            positions=positions,
            slots=positions.to(torch.int64),
            num_decodes=int(count == 1),
            max_query_len=count,
            max_kv_len=start + count,
        )
        ids = torch.tensor(token_ids, dtype=torch.int32, device=device)
        return self._model.forward(ids, batch, self._kv_pages, wanted)
