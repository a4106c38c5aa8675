"""Products with quantised weights: which kernel takes how many rows, and with which tiles.

Up to 8 rows ``fragment_linear`` (from Hopper on), then ``packed_linear``, both straight from the packed codes. For
many rows arithmetic is the limit and cuBLAS has no equal: it gets floats, from a copy kept for it or made anew each
time, a panel of outputs at a time, in scratch that all weights of a device share. Every choice follows from shapes.
"""

import torch

from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.triton.dense_linear import dense_linear
from pagewire_kernels.triton.fragment_linear import MAX_ROWS as MAX_FRAGMENT_ROWS
from pagewire_kernels.triton.fragment_linear import fragment_linear
from pagewire_kernels.triton.launch import on_hopper
from pagewire_kernels.triton.packed_linear import MAX_TILE_ROWS, packed_linear
from pagewire_kernels.triton.packed_weight import TILE_OUTPUTS, PackedWeight, pack_weight
from pagewire_kernels.triton.unpack_weight import unpack_tiles

PANEL_BYTES = 128 << 20
"""Scratch for the floats of one panel."""
MAX_PACKED_ROWS = 64
"""Rows up to which codes are multiplied as they are, where there is a copy in floats..."""
MAX_PACKED_ROWS_ALONE = 384
"""... and where there is none, which costs as much as writing one."""


class Scratch:
    """Memory for one panel, shared by the products of one device and dtype: they run one after the other."""

    def __init__(self) -> None:
        self._panels: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def reserve(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make sure of the memory before a graph is captured."""
        panel = self._panels.get((device, dtype))
        if panel is None or panel.numel() < num_elements:
            self._panels[device, dtype] = torch.empty(num_elements, dtype=dtype, device=device)

    def panel(self, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self._panels[device, dtype][: num_outputs * num_inputs].view(num_outputs, num_inputs)


class PackedProduct:
    """A quantised weight as the Triton kernels multiply with it."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype, counters: torch.Tensor, scratch: Scratch) -> None:
        """``counters`` int32, zeros. Raises ValueError for a weight that cannot be packed."""
        self._packed = pack_weight(weight, dtype)
        self._perm = weight.perm
        self._counters = counters
        self._scratch = scratch
        self._floats: torch.Tensor | None = None
        self.num_float_bytes = weight.codes.numel() * dtype.itemsize
        self.num_bytes = self._packed.num_bytes + (0 if self._perm is None else self._perm.nbytes)
        whole = self._packed.num_tiles * TILE_OUTPUTS * self._packed.num_inputs
        self._panel_outputs = _panel_outputs(self._packed)
        scratch.reserve(min(whole, self._panel_outputs * self._packed.num_inputs), dtype, weight.codes.device)

    def keep_floats(self) -> None:
        """Keep a copy in floats for products of many rows."""
        if self._floats is None:
            self._floats = self.floats()
            self.num_bytes += self._floats.nbytes

    def floats(self) -> torch.Tensor:
        """[out, in], columns in the weight's own order."""
        packed = self._packed
        floats = torch.empty(packed.num_outputs, packed.num_inputs, dtype=packed.dtype, device=packed.words.device)
        unpack_tiles(packed, 0, floats)
        return floats

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._perm is not None:
            x = x.index_select(1, self._perm)
        rows = x.shape[0]
        if 0 < rows <= MAX_FRAGMENT_ROWS and on_hopper():
            return fragment_linear(x, self._packed, bias)
        if rows and self._takes_codes(rows):
            return packed_linear(x, self._packed, bias, self._counters)
        if self._floats is not None:
            return dense_linear(x, self._floats, bias)
        return self._by_panels(x, bias)

    def _takes_codes(self, rows: int) -> bool:
        """Beside a copy, above ``MAX_PACKED_ROWS`` only those of large weights and only a full tile of rows: one
        that is not takes up to twice as long (measured on an H200)."""
        if self._floats is None:
            return rows <= MAX_PACKED_ROWS_ALONE
        tiles, chunks = self._packed.num_tiles, self._packed.num_chunks
        is_large = tiles >= 256 or (tiles <= 64 and chunks >= 64)
        return rows <= MAX_PACKED_ROWS or (rows == MAX_TILE_ROWS and is_large)

    def _by_panels(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        packed = self._packed
        out = torch.empty(x.shape[0], packed.num_outputs, dtype=x.dtype, device=x.device)
        for first in range(0, packed.num_outputs, self._panel_outputs):
            here = slice(first, min(first + self._panel_outputs, packed.num_outputs))
            panel = self._scratch.panel(here.stop - first, packed.num_inputs, packed.dtype, x.device)
            unpack_tiles(packed, first // TILE_OUTPUTS, panel)
            if bias is None:
                torch.mm(x, panel.t(), out=out[:, here])
            else:
                torch.addmm(bias[here], x, panel.t(), out=out[:, here])
        return out


def _panel_outputs(packed: PackedWeight) -> int:
    """Outputs a panel: as equal as possible, whole tiles."""
    most = max(1, PANEL_BYTES // (packed.num_inputs * packed.dtype.itemsize * TILE_OUTPUTS))
    panels = -(-packed.num_tiles // most)
    return -(-packed.num_tiles // panels) * TILE_OUTPUTS
