"""Penalties on tokens that a row has seen, for all rows of a step that asked for them; plain torch on any device."""

import torch


def penalize(
    logits: torch.Tensor, output_counts: torch.Tensor, in_prompt: torch.Tensor, penalties: torch.Tensor
) -> torch.Tensor:
    """The penalized logits, a new tensor.

    logits float32 [R, V]; output_counts int32 [R, V]: how often each token is in the row's output; in_prompt bool
    [R, V]: whether it is in its prompt; penalties float32 [R, 3]: repetition (> 0, 1 is off), frequency, presence (0
    is off). A repetition penalty divides positive logits and multiplies others, once for each distinct token of prompt
    and output (arXiv 1909.05858); then frequency is subtracted for each occurrence in the output, and presence once.
    """
    repetition, frequency, presence = penalties[:, :, None].unbind(1)
    in_output = output_counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalized = torch.where(in_prompt | in_output, scaled, logits)
    return penalized - frequency * output_counts - presence * in_output
