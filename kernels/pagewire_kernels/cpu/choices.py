"""What surrounds the sampling of rows whose tokens are limited, in plain torch."""

import torch

_BITS = torch.arange(8, dtype=torch.uint8)
_LIMITS = torch.where((torch.arange(256, dtype=torch.uint8)[:, None] >> _BITS) & 1 == 1, 0.0, float("-inf"))
"""What eight bits of a mask add to eight logits."""


def forbid(logits: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> None:
    """As the interface says."""
    octets = words.view(torch.uint8).view(-1).int()
    limits = _LIMITS.index_select(0, octets).view(len(words), -1)[:, : logits.shape[1]]
    logits.index_add_(0, places, limits)


def settle(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    statuses: torch.Tensor,
    faults: torch.Tensor,
    places: torch.Tensor,
    packed: torch.Tensor,
) -> None:
    """As the interface says."""
    is_lost = logits.gather(1, token_ids.long()[:, None])[:, 0] == float("-inf")
    settled = torch.where((statuses == 0) & is_lost, faults, statuses.int())
    packed[0, places] = torch.where(settled == 0, token_ids, 0)
    packed[1, places] = settled
