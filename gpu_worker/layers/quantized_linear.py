"""A linear layer of which at least one projection is quantised.

Projections of one input lie one below the other, as in a plain layer, and neighbours of one form (bits, groups, order
of columns) are one product. Where forms differ, or a checkpoint left some projections as they were, the layer has a
product for each run of equals and joins their outputs.

Of several ranks each holds its part: some outputs of every projection, or some inputs of a single one. Which inputs can
be divided shows in the weight when it is read; if they cannot, the layer takes all of them and has some of the outputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pagewire_kernels import KernelSet, QuantizedProduct, QuantizedWeight
from pagewire_kernels.quantized import can_concatenate, concatenate

from gpu_worker.layers.linear import Linear
from gpu_worker.rank_group import ALONE, RankGroup
from gpu_worker.shard import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One module of a checkpoint that is part of a layer."""

    name: str
    """For example ``model.layers.0.mlp.up_proj``."""
    outputs: Shard
    weight: torch.Tensor | None
    """[out, in] of this rank, uninitialised; None: it is quantised."""


class QuantizedLinear:
    """``x @ w.T + bias``: x [T, in] -> [T, out]. Of no use until ``fill``."""

    __slots__ = ("_group", "_runs", "bias", "inputs", "projections", "takes_all_inputs")

    def __init__(
        self, projections: Sequence[Projection], inputs: Shard, bias: torch.Tensor | None, group: RankGroup = ALONE
    ) -> None:
        self.projections = tuple(projections)
        self.inputs = inputs
        self.bias = bias
        self._group = group
        self.takes_all_inputs = inputs.is_all
        """Valid once filled: whether ``x`` has them all, although ``inputs`` are some."""
        self._runs: list[tuple[QuantizedProduct | Linear, torch.Tensor | None]] = []
        """Products and, for those that take one, their part of the bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [run(x) if isinstance(run, Linear) else run(x, bias) for run, bias in self._runs]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def part_of(self, projection: Projection, weight: QuantizedWeight) -> QuantizedWeight:
        """This rank's part of a quantised projection's whole weight."""
        if not self.inputs.is_all:
            if weight.can_select_inputs(self.inputs.size):
                return weight.select_inputs(self.inputs.start, self.inputs.stop)
            self.takes_all_inputs = True
            return weight.select_outputs(Shard.even(projection.outputs.whole, self._group).indices)
        return weight if projection.outputs.is_all else weight.select_outputs(projection.outputs.indices)

    def fill(self, weights: Mapping[str, QuantizedWeight], kernels: KernelSet, dtype: torch.dtype) -> None:
        """Repack this rank's weights of all quantised projections, by name; call once.

        Raises ValueError from the kernels.
        """
        start = 0
        for run in _runs(self.projections, weights):
            stop = start + sum(projection.outputs.size for projection in run)
            bias = None if self.bias is None else self.bias[start:stop]
            if run[0].weight is not None:
                product: QuantizedProduct | Linear = Linear(run[0].weight, bias, kernels.linear)
            else:
                product = kernels.prepare_quantized(concatenate([weights[each.name] for each in run]), dtype)
            self._runs.append((product, bias))
            start = stop

    @property
    def num_bytes(self) -> int:
        """Of the weights, without the bias."""
        return sum(run.weight.nbytes if isinstance(run, Linear) else run.num_bytes for run, _ in self._runs)

    def products(self) -> Iterable[QuantizedProduct]:
        """Of the quantised projections."""
        return (run for run, _ in self._runs if not isinstance(run, Linear))

    def pack(self) -> None:
        """As a plain layer's: for the projections that are plain."""
        for run, _ in self._runs:
            if isinstance(run, Linear):
                run.pack()


def _runs(projections: Iterable[Projection], weights: Mapping[str, QuantizedWeight]) -> Iterable[list[Projection]]:
    """Neighbours that fit one product; a plain projection is a run of its own."""
    run: list[Projection] = []
    for projection in projections:
        joins = bool(run) and run[0].weight is None and projection.weight is None
        if joins and can_concatenate(weights[run[0].name], weights[projection.name]):
            run.append(projection)
            continue
        if run:
            yield run
        run = [projection]
    yield run
