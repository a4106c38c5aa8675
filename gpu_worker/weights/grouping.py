"""Brings a module whose columns name their groups into the canonical form: columns sorted by group."""

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.weights.stored_module import StoredModule


def grouped(
    module: StoredModule,
    *,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group_size: int,
    bits: int,
    group_index: torch.Tensor | None,
    ending: str = "g_idx",
) -> QuantizedWeight:
    """codes [out, in], scales and zeros [out, groups]; ``group_index`` int [in], or None or empty for neighbours.

    Column k's scale is that of group ``group_index[k]`` whatever its size. Groups of uneven sizes become smaller ones
    that share their numbers.
    """
    num_inputs = codes.shape[1]
    in_order = torch.arange(num_inputs, device=codes.device) // group_size
    perm = None
    if group_index is not None and group_index.numel() > 0:
        index = _checked(module, group_index, scales.shape[1], ending)
        if not torch.equal(index, in_order):
            index, order = index.sort(stable=True)
            perm = None if torch.equal(order, torch.arange(num_inputs, device=order.device)) else order
            codes = codes if perm is None else codes[:, perm]
            if not torch.equal(index, in_order):
                group_size = _common_size(index, group_size)
                firsts = index[::group_size]
                scales, zeros = scales[:, firsts], zeros[:, firsts]
    return QuantizedWeight(codes=codes, scales=scales, zeros=zeros, group_size=group_size, bits=bits, perm=perm)


def _checked(module: StoredModule, group_index: torch.Tensor, num_groups: int, ending: str) -> torch.Tensor:
    index = module.take(ending, (torch.int32, torch.int64), (module.num_inputs,)).long()
    if int(index.min()) < 0 or int(index.max()) >= num_groups:
        raise module.error(ending, f"names groups {int(index.min())} to {int(index.max())}; there are {num_groups}")
    return index


def _common_size(index: torch.Tensor, group_size: int) -> int:
    """The largest size, halving from ``group_size``, at whose multiples alone the sorted groups change."""
    changes = (index[1:] != index[:-1]).nonzero().flatten() + 1
    size = group_size
    while size > 1 and bool((changes % size != 0).any()):
        size = size // 2 if size % 2 == 0 else 1
    return size
