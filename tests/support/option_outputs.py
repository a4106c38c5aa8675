"""What a request with sampling options says: the reference's rules on transformers' logits, token by token."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pagewire.internal.v1 import worker_pb2
from pagewire_kernels.reference import adjusted_logits
from transformers import LlamaForCausalLM


def expected_output(model: LlamaForCausalLM, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[int]:
    """Greedy tokens; ``options`` are those of ``adjusted_logits``."""
    output: list[int] = []
    for _ in range(max_tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, -1]
        output.append(int(adjusted_logits(logits, prompt, output, **options).argmax()))
    return output


def row_options(
    bias: Mapping[int, float] | None = None,
    allowed_token_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    stop_token_ids: Sequence[int] = (),
    **numbers: float,
) -> bytes:
    """The same options as they travel to a worker."""
    message = worker_pb2.RowOptions(
        bias_token_ids=array("i", bias or ()).tobytes(),
        biases=array("f", (bias or {}).values()).tobytes(),
        allowed_token_ids=array("i", allowed_token_ids).tobytes(),
        bad_words=b"".join(array("i", [len(word), *word]).tobytes() for word in bad_words),
        stop_token_ids=array("i", stop_token_ids).tobytes(),
        **numbers,
    )
    return bytes(message.SerializeToString())
