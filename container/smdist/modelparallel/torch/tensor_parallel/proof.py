# SPDX-License-Identifier: Apache-2.0
"""Proof of a split: a copy of the block, in parts, gives the numbers of the whole block.

The block runs alone in float64, forward and backward, once whole and once on simulated ranks.
Outputs, gradients of inputs and gradients of parameters have to agree. Weights and inputs are
random, so a split that is wrong gives other numbers. Dropout inside of the split would draw other
numbers than in the whole block, which shows in the shapes of random operations. If all of it is in
`nn.Dropout` modules, these are made to draw the numbers of the whole block, and the proof is tried
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.argument_objects import is_cache
from smdist.modelparallel.torch.materialization.skeleton import like, skeleton
from smdist.modelparallel.torch.materialization.skeleton import replace as put
from smdist.modelparallel.torch.program.pytree import flatten, map_leaves
from smdist.modelparallel.torch.randomness import generators_kept
from smdist.modelparallel.torch.tensor_parallel.data_flow import TensorShape
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import (
    NumberedDraws,
    SimulatedRanks,
)
from smdist.modelparallel.torch.tensor_parallel.split_model import split_region
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import (
    DROPOUT,
    UNPROVED,
    DropoutSplit,
    Region,
)
from smdist.modelparallel.torch.tensor_splits import is_dropout, split_of
from smdist.modelparallel.torch.tensor_splits.split_modules import is_table

_TOLERANCE: Final = 1e-6  # blocks may compute in float32 inside, so float64's is too small
_SEED: Final = 20


@dataclass(frozen=True, slots=True)
class Refutation:
    """Reason why a split is not right.

    Attributes:
        kind: Kind of the reason: "dropout" or "unproved".
        text: Sentence for users.
    """

    kind: str
    text: str


@dataclass(slots=True)
class _Run:
    """Numbers of one run of a block, and the random operations in it.

    Attributes:
        outputs: Outputs of the block.
        input_grads: Gradients of its inputs.
        draws: Name and shapes of each random operation.
        dropped: Shape of the input of each `nn.Dropout`, by its name; of the last call.
    """

    outputs: list[Tensor]
    input_grads: list[Tensor]
    draws: list[Any]
    dropped: dict[str, torch.Size]


class WholeBlock:
    """Copy of a block of the model with random values, and the numbers of its run.

    Args:
        block: Block of the model, also on the meta device; it stays unchanged.
        call: Recorded arguments of a call of the block, with `TensorShape` in place of tensors.

    Raises:
        Exception: The block does not run alone.
    """

    def __init__(self, block: nn.Module, call: Any) -> None:
        with generators_kept():
            torch.manual_seed(_SEED)
            self._copy = _with_values(block)
            self._call = map_leaves(lambda leaf: _value(leaf, self._copy), call)
            self._run = _run(self._copy, self._call)

    def prove(self, region: Region, degree: int) -> Region | Refutation:
        """Return a split that gives the numbers of the whole block, or why there is none.

        Args:
            region: Split, with the names that its modules have in the block.
            degree: Number of ranks.

        Returns:
            The split, with the dropouts in it; or the reason why it is wrong.
        """
        found = self._tried(region, degree)
        if isinstance(found, Refutation):
            return found
        runs, copies = found
        against = self._compared(runs, copies)
        if against is not None and against.kind == DROPOUT and not region.dropouts:
            dropouts = self._split_dropouts(runs[0], degree)
            if dropouts:
                again = self.prove(replace(region, dropouts=dropouts), degree)
                return again if isinstance(again, Region) else against
        return against or region

    def _tried(
        self, region: Region, degree: int
    ) -> tuple[list[_Run], list[nn.Module]] | Refutation:
        """Run copies of the block in parts; return the runs and the copies."""
        ranks = SimulatedRanks(degree)
        copies = [_unrun(self._copy) for _ in range(degree)]

        def work(rank: int) -> _Run:
            split_region(copies[rank], region, ranks.peers(rank))
            return _run(copies[rank], self._call)

        try:
            with generators_kept():
                return ranks.run(work), copies
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Refutation(UNPROVED, f"its parts do not run alone ({first[:120]})")

    def _split_dropouts(self, of_part: _Run, degree: int) -> tuple[DropoutSplit, ...]:
        """Return the dropouts whose input in a part is split along one dimension."""
        found = []
        for name, shape in of_part.dropped.items():
            whole = self._run.dropped.get(name, shape)
            other = [dim for dim, size in enumerate(shape) if size != whole[dim]]
            if len(whole) == len(shape) and len(other) == 1:
                (dim,) = other
                if whole[dim] == degree * shape[dim]:
                    found.append(DropoutSplit(name=name, dim=dim))
        return tuple(found)

    def _compared(self, runs: Sequence[_Run], copies: Sequence[nn.Module]) -> Refutation | None:
        if any(run.draws != self._run.draws for run in runs):
            return Refutation(DROPOUT, "dropout inside of it would draw other numbers on parts")
        for run in runs:
            if not _are_close(run.outputs, self._run.outputs):
                return Refutation(UNPROVED, "its parts give another output than the whole")
            if not _are_close(run.input_grads, self._run.input_grads):
                return Refutation(UNPROVED, "its parts give other gradients of its inputs")
        parts = [dict(copy.named_parameters(remove_duplicate=False)) for copy in copies]
        scale = max((_size(each.grad) for each in self._copy.parameters()), default=0.0)
        for name, whole in self._copy.named_parameters(remove_duplicate=False):
            if not _same_gradient(whole, [of_rank[name] for of_rank in parts], scale):
                why = f"its parts give another gradient of {name!r} than the whole"
                return Refutation(UNPROVED, why)
        return None


def _with_values(block: nn.Module) -> nn.Module:
    """Return a copy of a block in float64 and in training mode, with random parameters."""
    bare = skeleton(block)
    buffers = dict(block.named_buffers(remove_duplicate=False))
    new: dict[int, Tensor] = {}
    for parameter in bare.parameters():
        values = torch.randn(parameter.shape, dtype=torch.float64) * 0.3
        floats = parameter.is_floating_point()
        made = like(parameter, values if floats else values.to(parameter.dtype))
        new[id(parameter)] = made.requires_grad_(floats)
    for name, buffer in bare.named_buffers(remove_duplicate=False):
        real = buffers[name]
        new.setdefault(id(buffer), _buffer(real))
    put(bare.modules(), new)
    return bare.train()


def _buffer(real: Tensor) -> Tensor:
    """Return the values of a buffer in float64; random ones if it is on the meta device."""
    if real.is_meta:
        made = torch.rand(real.shape, dtype=torch.float64) + 0.5
        return made if real.is_floating_point() else torch.ones(real.shape, dtype=real.dtype)
    values = real.detach().cpu().clone()
    return values.double() if values.is_floating_point() else values


def _unrun(copy: nn.Module) -> nn.Module:
    made = deepcopy(copy)
    for parameter in made.parameters():
        parameter.grad = None
    return made


def _value(leaf: Any, block: nn.Module) -> Any:
    """Return a random argument like the recorded one; no key-value cache."""
    if is_cache(leaf):
        return None
    if not isinstance(leaf, TensorShape):
        return leaf
    if leaf.dtype.is_floating_point:
        return torch.randn(leaf.size, dtype=torch.float64).requires_grad_(leaf.has_grad)
    if leaf.dtype is torch.bool:
        return torch.ones(leaf.size, dtype=torch.bool)
    tables = [each.num_embeddings for each in block.modules() if isinstance(each, nn.Embedding)]
    high = min(tables) if is_table(block) else 1
    return torch.randint(high, leaf.size, dtype=leaf.dtype)


def _run(block: nn.Module, call: Any) -> _Run:
    """Run a block forward and backward, and return outputs and gradients of inputs."""
    args, kwargs = map_leaves(_fresh, call)
    dropped: dict[str, torch.Size] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, dropped, name))
        for name, module in block.named_modules()
        if is_dropout(module)
    ]
    with torch.enable_grad(), NumberedDraws() as draws:
        found, _ = flatten(block(*args, **kwargs))
        outputs = [each for each in found if isinstance(each, Tensor) and each.requires_grad]
        loss = sum((each.double() * _weights(each)).sum() for each in outputs)
        assert isinstance(loss, Tensor), "the block has no output with a gradient"
        loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    inputs = [each for each in flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    grads = [each.grad if each.grad is not None else each.new_zeros(()) for each in inputs]
    return _Run([each.detach() for each in outputs], grads, draws.shapes, dropped)


def _note(dropped: dict[str, torch.Size], name: str, _: nn.Module, inputs: Any) -> None:
    """Forward pre-hook of a dropout: record the shape of its input."""
    dropped[name] = inputs[0].shape


def _fresh(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _weights(output: Tensor) -> Tensor:
    """Return fixed weights by which the elements of an output count in the loss."""
    return torch.linspace(-1.0, 2.0, output.numel(), dtype=torch.float64).view(output.shape).cos()


def _are_close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(_is_close(one, other) for one, other in pairs)


def _size(tensor: Tensor | None) -> float:
    """Return the largest number in a tensor; 0 without any."""
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0


def _is_close(one: Tensor, other: Tensor, scale: float = 0.0) -> bool:
    """Return True if tensors differ by rounding, relative to the largest number or to `scale`."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    limit = _TOLERANCE * max(1e-6, _size(other), scale)
    return bool(((one - other).abs() <= limit).all())


def _same_gradient(whole: Tensor, parts: Sequence[Tensor], scale: float) -> bool:
    """Return True if the parts of a parameter have the gradient of the whole one.

    A gradient may be 0 but for rounding, as that of the biases of keys in attention. So differences
    are relative to the largest gradient of all parameters.

    Args:
        whole: Parameter of the whole block.
        parts: The parameter on each rank.
        scale: Largest number in the gradients of all parameters of the block.
    """
    grads = [part.grad for part in parts]
    if whole.grad is None:
        return all(grad is None for grad in grads)
    given = [grad for grad in grads if grad is not None]
    if len(given) < len(grads):
        return False
    split = split_of(parts[0])
    if split is not None:
        return _is_close(split.joined(given), whole.grad, scale)
    return all(_is_close(grad, whole.grad, scale) for grad in given)
