# SPDX-License-Identifier: Apache-2.0
"""Modules of any class inside of a split region, and borders of regions.

A module that computes on parts of tensors may have whole parameters, such as the norm of each head
of attention. Each rank then has a part of their gradients, which are summed over ranks. A bias that
is added before a sum over ranks counts on the first rank alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.program.pytree import flatten, map_leaves, unflatten
from smdist.modelparallel.torch.tensor_splits.dropout_calls import DropoutCalls
from smdist.modelparallel.torch.tensor_splits.region_borders import (
    entered,
    joined,
    narrowed,
    summed,
)
from smdist.modelparallel.torch.tensor_splits.region_entry import RegionEntry
from smdist.modelparallel.torch.tensor_splits.sequence_part import whole_sequences
from smdist.modelparallel.torch.tensor_splits.split_dropout import SplitDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class PartValues:
    """Values that pass between a module in a split region and what is outside of the region.

    Attributes:
        summed: Names of whole parameters of which each rank has a part of the gradient.
        first: Names of whole parameters that count on the first rank alone.
        narrowed: Numbers of the leaves of the module's arguments of which it takes this rank's
            part, with the dimension.
        widths: Numbers of the leaves of its arguments from whose shape it reads the width of what
            it splits into heads, such as `x.shape[-1] // self.num_heads`. It sees the width of a
            part there, and its products get the whole argument.
        joined: Numbers of the leaves of its output that are parts, and are joined, with the
            dimension.
        dropped: Numbers of the leaves of its output that are None, since they would be parts, and
            nobody uses them.
        dropouts: Numbers of the calls of torch's dropout function, and of fused attention, in it
            that get a part of a tensor, with the dimension that is split.
    """

    summed: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    narrowed: tuple[tuple[int, int], ...] = ()
    widths: tuple[int, ...] = ()
    joined: tuple[tuple[int, int], ...] = ()
    dropped: tuple[int, ...] = ()
    dropouts: tuple[tuple[int, int], ...] = ()


class PartModule(nn.Module):
    """Mixin of a module that computes with parts of tensors."""

    _smp_entry: RegionEntry
    _smp_values: PartValues

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's own forward function returns on parts of tensors."""
        args, kwargs = self._narrowed((args, kwargs))
        with self._parameters_in_region(), self._dropout(), self._smp_entry.stand_ins():
            args, kwargs = self._of_part_width((args, kwargs))
            found = super().forward(*args, **kwargs)
        return self._joined(found)

    def _dropout(self) -> AbstractContextManager[Any]:
        peers = self._smp_entry.peers
        calls = self._smp_values.dropouts
        draws = {number: SplitDraw(dim, peers.size, peers.rank) for number, dim in calls}
        return DropoutCalls(draws) if draws else nullcontext()

    def _narrowed(self, arguments: Any) -> Any:
        if not self._smp_values.narrowed:
            return arguments
        leaves, form = flatten(whole_sequences(arguments))
        for at, dim in self._smp_values.narrowed:
            if isinstance(leaves[at], Tensor):
                leaves[at] = narrowed(leaves[at], self._smp_entry.peers, dim)
        return unflatten(form, leaves)

    def _of_part_width(self, arguments: Any) -> Any:
        if not self._smp_values.widths:
            return arguments
        leaves, form = flatten(arguments)
        for at in self._smp_values.widths:
            if isinstance(leaves[at], Tensor):
                leaves[at] = self._smp_entry.stand_in(leaves[at])
        return unflatten(form, leaves)

    def _joined(self, output: Any) -> Any:
        values = self._smp_values
        if not (values.joined or values.dropped):
            return output
        leaves, form = flatten(output)
        for at, dim in values.joined:
            leaves[at] = joined(leaves[at], self._smp_entry.peers, dim)
        for at in values.dropped:
            leaves[at] = None
        return unflatten(form, leaves)

    @contextmanager
    def _parameters_in_region(self) -> Iterator[None]:
        """Let the forward function see whole parameters as values that have entered the region."""
        peers = self._smp_entry.peers
        seen = {name: entered(self._own(name), peers) for name in self._smp_values.summed}
        for name in self._smp_values.first:
            seen[name] = entered(self._own(name), peers) * float(peers.rank == 0)
        vars(self).update(seen)
        try:
            yield
        finally:
            for name in seen:
                vars(self).pop(name, None)

    def _own(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter


class BorderModule(PartModule):
    """Mixin of a module whose inputs enter a split region."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's own forward function returns; gradients of inputs are summed."""
        peers = self._smp_entry.peers
        args, kwargs = whole_sequences((args, kwargs))
        args, kwargs = map_leaves(lambda leaf: _entered(leaf, peers), (args, kwargs))
        return super().forward(*args, **kwargs)


class ExpertsModule(BorderModule):
    """Mixin of a module with stacked experts, each of which is split by its hidden width."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the sum over ranks of the outputs of the parts of experts."""
        peers = self._smp_entry.peers
        found = super().forward(*args, **kwargs)
        return map_leaves(lambda leaf: summed(leaf, peers) if _is_value(leaf) else leaf, found)


def _entered(leaf: Any, peers: Any) -> Any:
    is_traced = _is_value(leaf) and leaf.requires_grad and torch.is_grad_enabled()
    return entered(leaf, peers) if is_traced else leaf


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
