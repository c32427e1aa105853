# SPDX-License-Identifier: Apache-2.0
"""Proof of a split: a copy of the block, in parts, gives the numbers of the whole block.

The block runs alone in float64, forward and backward, once whole and once on simulated ranks; in
float32 if it does not run in float64. Outputs, gradients of inputs and gradients of parameters have
to agree. Weights and inputs are random, so a split that is wrong gives other numbers.

What a run shows may correct a split, which is then tried again:

* Dropout inside of the split would draw other numbers than in the whole block, which shows in the
  shapes of random operations. It is made to draw the numbers of the whole block.
* Whole parameters inside have a part of their gradient on each rank, which the ranks then sum.
* An input with a dimension of heads, such as a bias of attention, has to be a part.
* The width of an input is read from its shape, and divided by the number of heads of one rank.
* An output is a part. It is joined; or left out if nobody uses it, as the weights of attention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.program.pytree import flatten, map_leaves
from smdist.modelparallel.torch.randomness import generators_kept
from smdist.modelparallel.torch.tensor_parallel.block_numbers import numbers_of_heads
from smdist.modelparallel.torch.tensor_parallel.block_run import BlockRun, run_block
from smdist.modelparallel.torch.tensor_parallel.equal_numbers import (
    is_close,
    is_same_gradient,
    is_sum_of_gradients,
    largest,
)
from smdist.modelparallel.torch.tensor_parallel.random_block import random_argument, with_values
from smdist.modelparallel.torch.tensor_parallel.refusal_kinds import DROPOUT, UNPROVED
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import (
    SimulatedRanks,
)
from smdist.modelparallel.torch.tensor_parallel.split_model import split_region
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import DropoutSplit, ModuleSplit, Region
from smdist.modelparallel.torch.tensor_splits import (
    PartValues,
    Role,
)

# blocks may compute in float32 inside, so that of float64 is too small
_TOLERANCES: Final = {torch.float64: 1e-6, torch.float32: 1e-4}
_SEED: Final = 20
_TRIES: Final = 8  # tries of one split, each a correction of the one before


@dataclass(frozen=True, slots=True)
class Refutation:
    """Reason why a split is not right.

    Attributes:
        kind: Kind of the reason: "dropout" or "unproved".
        text: Sentence for users.
        summed: Names of parameters whose gradients would be right if they were summed over ranks,
            if nothing else is wrong.
        values: What would correct the module around the split, if nothing else is wrong.
    """

    kind: str
    text: str
    summed: tuple[str, ...] = ()
    values: PartValues = field(default_factory=PartValues)


class WholeBlock:
    """Copy of a block of the model with random values, and the numbers of its run.

    Args:
        block: Block of the model, also on the meta device; it stays unchanged.
        call: Recorded arguments of a call of the block, with `TensorShape` in place of tensors.
        unused: Numbers of the leaves of its output that nobody uses.
        on_accelerator: True if the model will run on an accelerator.

    Raises:
        Exception: The block does not run alone.
    """

    def __init__(
        self,
        block: nn.Module,
        call: Any,
        unused: Collection[int] = (),
        *,
        on_accelerator: bool = False,
    ) -> None:
        self._unused, self._on_accelerator = unused, on_accelerator
        try:
            self._start(block, call, torch.float64)
        except Exception:
            self._start(block, call, torch.float32)

    def _start(self, block: nn.Module, call: Any, dtype: torch.dtype) -> None:
        self._tolerance = _TOLERANCES[dtype]
        with generators_kept():
            torch.manual_seed(_SEED)
            self._copy = with_values(block, dtype)
            for mask in (True, False):  # one of them may hide all values
                self._call = map_leaves(
                    partial(random_argument, block=self._copy, dtype=dtype, mask=mask), call
                )
                self._run = run_block(self._copy, self._call, unused=self._unused)
                if not any(each.isnan().any() for each in self._run.outputs.values()):
                    break
                self._copy.zero_grad()

    def has_sequence(self, degree: int) -> bool:
        """Return True if an output is (samples, positions, width), with a position per rank."""
        outputs = self._run.outputs.values()
        return any(each.dim() == 3 and each.shape[1] >= degree for each in outputs)

    def prove(self, region: Region, degree: int) -> Region | Refutation:
        """Return a split that gives the numbers of the whole block, or why there is none.

        Args:
            region: Split, with the names that its modules have in the block.
            degree: Number of ranks.

        Returns:
            The split, with the dropouts in it; or the reason why it is wrong.
        """
        first: Refutation | None = None
        for _ in range(_TRIES):
            found = self._tried(region, degree)
            against = found if isinstance(found, Refutation) else self._compared(*found, degree)
            if against is None:
                return region
            of_part = None if isinstance(found, Refutation) else found[0][0]
            first = first or against
            corrected = self._corrected(region, against, of_part, degree)
            if corrected is None:
                break
            region = corrected
        assert first is not None
        return first

    def _corrected(
        self, region: Region, against: Refutation, of_part: BlockRun | None, degree: int
    ) -> Region | None:
        """Return a split without what a run has shown to be wrong; None if there is none."""
        if against.kind == DROPOUT and of_part is not None:
            return self._corrected_dropout(region, of_part, degree)
        changes: dict[str, ModuleSplit] = {}
        for name in against.summed:
            module, _, key = name.rpartition(".")
            before = changes.get(module) or _part_of(region, module)
            if before is None or key in before.values.summed:
                return None
            changes[module] = _with(before, PartValues(summed=(*before.values.summed, key)))
        block = _part_of(region, "")
        if block is not None and _with(block, against.values) != block:
            changes[""] = _with(block, against.values)
        if not changes:
            return None
        others = [each for each in region.modules if not _is_changed(each, changes)]
        return replace(region, modules=(*others, *changes.values()))

    def _corrected_dropout(self, region: Region, of_part: BlockRun, degree: int) -> Region | None:
        """Return a split whose dropout draws whole numbers: of modules, or of all calls."""
        block = _part_of(region, "")
        if block is None or block.values.dropouts:
            return None
        modules = self._split_dropouts(of_part.dropped, self._run.dropped, degree)
        if modules and not region.dropouts:
            return replace(
                region, dropouts=tuple(DropoutSplit(name=name, dim=dim) for name, dim in modules)
            )
        parts = of_part.calls
        if self._on_accelerator:  # a kernel draws the mask of fused attention there
            parts = {at: each for at, each in parts.items() if at not in of_part.attentions}
        calls = self._split_dropouts(parts, self._run.calls, degree)
        if not calls:
            return None
        changed = _with(block, PartValues(dropouts=calls))
        others = [each for each in region.modules if not _is_changed(each, {"": changed})]
        return replace(region, modules=(*others, changed), dropouts=())

    def _tried(
        self, region: Region, degree: int
    ) -> tuple[list[BlockRun], list[nn.Module]] | Refutation:
        """Run copies of the block in parts; return the runs and the copies."""
        ranks = SimulatedRanks(degree)
        copies = [_unrun(self._copy) for _ in range(degree)]

        def work(rank: int) -> BlockRun:
            peers = ranks.peers(rank)
            split_region(copies[rank], region, peers)
            slices = peers if region.is_sliced else None
            return run_block(copies[rank], self._call, self._unused, slices)

        try:
            with generators_kept():
                return ranks.run(work), copies
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = f"its parts do not run alone ({first[:120]})"
            block = _part_of(region, "")
            values = PartValues(narrowed=tuple(self._inputs_of_heads(degree)))
            if not values.narrowed or (block is not None and block.values.narrowed):
                values = PartValues(widths=tuple(self._inputs_of_widths(degree)))
            return Refutation(UNPROVED, why, values=values)

    def _inputs_of_widths(self, degree: int) -> Iterator[int]:
        """Yield numbers of the inputs whose last dimension may be read as the width of a part."""
        for at, leaf in enumerate(flatten(self._call)[0]):
            is_wide = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() > 1
            if is_wide and leaf.shape[-1] % degree == 0:
                yield at

    def _inputs_of_heads(self, degree: int) -> Iterator[tuple[int, int]]:
        """Yield numbers of the inputs of at least 3 dimensions that have one of heads, with it."""
        heads = {count for _, count in numbers_of_heads(self._copy) if count % degree == 0}
        for at, leaf in enumerate(flatten(self._call)[0]):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() > 2:
                dims = [dim for dim, size in enumerate(leaf.shape[:-2]) if size in heads]
                if dims:
                    yield at, dims[-1]

    def _split_dropouts(
        self, part: Mapping[Any, torch.Size], whole: Mapping[Any, torch.Size], degree: int
    ) -> tuple[tuple[Any, int], ...]:
        """Return the dropouts whose input in a part is split along one dimension, with it."""
        dims = {
            key: _split_dim(shape, whole.get(key, shape), degree) for key, shape in part.items()
        }
        return tuple((key, dim) for key, dim in dims.items() if dim is not None)

    def _compared(
        self, runs: Sequence[BlockRun], copies: Sequence[nn.Module], degree: int
    ) -> Refutation | None:
        if any(run.draws != self._run.draws for run in runs):
            return Refutation(DROPOUT, "dropout inside of it would draw other numbers on parts")
        wrong = {at for run in runs for at in self._other_outputs(run)}
        if wrong:
            why = "its parts give another output than the whole"
            return Refutation(UNPROVED, why, values=self._corrected_outputs(wrong, runs[0], degree))
        for run in runs:
            grads = zip(run.input_grads, self._run.input_grads, strict=True)
            if not all(is_close(one, other, self._tolerance) for one, other in grads):
                return Refutation(UNPROVED, "its parts give other gradients of its inputs")
        return self._compared_gradients(copies)

    def _corrected_outputs(self, wrong: set[int], run: BlockRun, degree: int) -> PartValues:
        """Return which of the wrong outputs are parts to join, and which nobody uses.

        Nothing if another one is wrong.
        """
        joined: list[tuple[int, int]] = []
        for at in sorted(wrong - set(self._unused)):
            part, whole = run.outputs.get(at), self._run.outputs[at]
            dim = None if part is None else _split_dim(part.shape, whole.shape, degree)
            if dim is None:
                return PartValues()
            joined.append((at, dim))
        dropped = tuple(sorted(wrong & set(self._unused)))
        return PartValues(joined=tuple(joined), dropped=dropped)

    def _other_outputs(self, run: BlockRun) -> Iterator[int]:
        """Yield the numbers of outputs that are not those of the whole block."""
        for at, whole in self._run.outputs.items():
            found = run.outputs.get(at)
            is_dropped = found is None and at in self._unused
            if not is_dropped and (found is None or not is_close(found, whole, self._tolerance)):
                yield at

    def _compared_gradients(self, copies: Sequence[nn.Module]) -> Refutation | None:
        parts = [dict(copy.named_parameters(remove_duplicate=False)) for copy in copies]
        scale = max((largest(each.grad) for each in self._copy.parameters()), default=0.0)
        close = partial(is_close, tolerance=self._tolerance, scale=scale)
        summed: list[str] = []
        against: Refutation | None = None
        for name, whole in self._copy.named_parameters(remove_duplicate=False):
            of_ranks = [of_rank[name] for of_rank in parts]
            if is_same_gradient(whole, of_ranks, close):
                continue
            why = f"its parts give another gradient of {name!r} than the whole"
            against = against or Refutation(UNPROVED, why)
            if not is_sum_of_gradients(whole, of_ranks, close):
                return against
            summed.append(name)
        return against and replace(against, summed=tuple(summed))


def _part_of(region: Region, module: str) -> ModuleSplit | None:
    """Return the split of a module that is no product, a new one if it has none."""
    for each in region.modules:
        if each.name == module and each.role in (Role.BORDER, Role.EXPERTS):
            return each
        if each.name == module and each.role is not Role.PART:
            return None
    found = (each for each in region.modules if each.name == module)
    return next(found, ModuleSplit(name=module, role=Role.PART))


def _with(split: ModuleSplit, values: PartValues) -> ModuleSplit:
    """Return a split with those of its values replaced that are not empty."""
    given = {each.name: getattr(values, each.name) for each in fields(values)}
    changes = {name: value for name, value in given.items() if value}
    return replace(split, values=replace(split.values, **changes))


def _split_dim(part: torch.Size, whole: torch.Size, degree: int) -> int | None:
    """Return the only dimension in which the shape of a part is smaller by the degree, or None."""
    if len(part) != len(whole):
        return None
    other = [dim for dim, size in enumerate(part) if size != whole[dim]]
    is_part = len(other) == 1 and whole[other[0]] == degree * part[other[0]]
    return other[0] if is_part else None


def _is_changed(split: ModuleSplit, changes: Mapping[str, ModuleSplit]) -> bool:
    change = changes.get(split.name)
    return change is not None and (change.role, change.dims) == (split.role, split.dims)


def _unrun(copy: nn.Module) -> nn.Module:
    made = deepcopy(copy)
    for parameter in made.parameters():
        parameter.grad = None
    return made
