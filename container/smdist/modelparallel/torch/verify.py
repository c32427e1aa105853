# SPDX-License-Identifier: Apache-2.0
"""`verify(model, batch)`: does the split model compute what the model computes?

Both run in one process on the same batch, forward and backward. Outputs, the loss, all gradients
and all buffers are compared; the model is left as it was. Dropout draws the same numbers in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition import partition
from smdist.modelparallel.core.placement import Placement, place, placed_units
from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.capture.state import snapshots
from smdist.modelparallel.torch.capture.surroundings import uncompiled
from smdist.modelparallel.torch.compare import Worst, tensors_of, worst
from smdist.modelparallel.torch.randomness import Draws, drawing
from smdist.modelparallel.torch.replay import Roots, backward, replay
from smdist.modelparallel.torch.stage import StageModule
from smdist.modelparallel.torch.tree import map_leaves


class Split(Protocol):
    """What `verify` reads of a plan."""

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of units, by stage."""

    @property
    def opened(self) -> tuple[str, ...]:
        """Units that the plan went into."""


class VerifyError(OptionError):
    """The split model computes something else than the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How close the split model is.

    Attributes:
        relative_error: Of the gradient that differs most.
        parameter: Its name; empty where no gradient was computed.
        output_error: Of the output that differs most.
        buffer_error: Of the buffer that differs most after the run.
        stages: Names of the units in each stage.
        captured: The model, taken apart.
        placement: Where its parts ran.
    """

    relative_error: float
    parameter: str
    output_error: float
    buffer_error: float
    stages: tuple[tuple[str, ...], ...]
    captured: Captured = field(repr=False)
    placement: Placement = field(repr=False)

    def __str__(self) -> str:
        model, number = self.captured.graph.model, len(self.stages)
        where = f" ({self.parameter})" if self.parameter else ""
        return (
            f"{model} on {number} stage{'s' * (number > 1)} is the whole model: gradients differ by"
            f" {self.relative_error:.1e} at most{where}, outputs by {self.output_error:.1e},"
            f" buffers by {self.buffer_error:.1e}"
        )


def verify(
    model: nn.Module,
    batch: Any,
    *,
    stages: int | Sequence[Sequence[str]] = 2,
    plan: Split | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    tolerance: float = 1e-5,
) -> Verified:
    """Compare a model with itself, split.

    Args:
        model: With real parameters, in whatever mode it is to be used.
        batch: A tensor, a tuple of positional arguments or a dict of keyword arguments.
        stages: How many, of about as many units each, or the names of the units in each.
        plan: Where the stages come from instead.
        loss: A scalar of what the model returns. The default is its `loss`, or itself if it is a
            scalar; otherwise each floating-point output gets a gradient of random numbers.
        tolerance: What any relative difference may come to.

    Raises:
        VerifyError: Some number differs by more: names the worst parameter.
        CaptureError: The model cannot be taken apart.
        OptionError: A stage is empty, a unit is missing, or the model is on the meta device.
    """
    _check_real(model)
    captured = capture(model, batch, opened=plan.opened if plan else ())
    wanted = plan.stages if plan else stages
    placement = _placement(captured.graph, wanted)
    runs = _Runs(captured, placement, loss)
    plain, split = runs.plain(), runs.split()
    return _judged(captured, placement, (plain, split), tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """What one run left."""

    outputs: dict[str, Tensor | None]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor | None]


class _Runs:
    """Both runs, each on the model as it was."""

    def __init__(
        self, captured: Captured, placement: Placement, loss: Callable[[Any], Tensor] | None
    ) -> None:
        self._captured, self._placement, self._loss = captured, placement, loss
        self._model = captured.model

    def plain(self) -> _Numbers:
        """The model as it is."""
        with _as_it_was(self._model):
            args, kwargs = self._inputs()
            with drawing(self._captured.program, self._model, Draws()):
                output = self._model(*args, **kwargs)
                backward(self._roots(output))  # a checkpoint draws its numbers again
            return self._numbers(output, (args, kwargs))

    def split(self) -> _Numbers:
        """Its stages, one after the other."""
        with _as_it_was(self._model):
            arguments = self._inputs()
            stages = [
                StageModule(self._captured, self._placement, number)
                for number in range(self._placement.num_stages)
            ]
            output = replay(stages, self._placement, arguments, self._roots, Draws())
            return self._numbers(output, arguments)

    def _inputs(self) -> tuple[Any, Any]:
        arguments = arguments_of(self._captured.example)
        copied: tuple[Any, Any] = map_leaves(_copied, arguments)
        return copied

    def _roots(self, output: Any) -> Roots:
        scalar = self._loss(output) if self._loss else _scalar(output)
        if scalar is not None:
            return [(scalar, None)]
        generator = torch.Generator().manual_seed(0)
        floats = [t for t in tensors_of(output).values() if t is not None and t.requires_grad]
        return [(tensor, _cotangent(tensor, generator)) for tensor in floats]

    def _numbers(self, output: Any, arguments: Any) -> _Numbers:
        inputs = tensors_of(arguments)
        gradients = {name: p.grad for name, p in self._model.named_parameters()}
        gradients |= {f"input {at}": t.grad for at, t in enumerate(_wanting(inputs))}
        return _Numbers(
            outputs={name: _kept(tensor) for name, tensor in tensors_of(output).items()},
            gradients={name: _kept(tensor) for name, tensor in gradients.items()},
            buffers={name: _kept(buffer) for name, buffer in self._model.named_buffers()},
        )


def _judged(
    captured: Captured,
    placement: Placement,
    numbers: tuple[_Numbers, _Numbers],
    tolerance: float,
) -> Verified:
    plain, split = numbers
    outputs = worst(plain.outputs, split.outputs)
    gradients = worst(plain.gradients, split.gradients)
    buffers = worst(plain.buffers, split.buffers)
    found = Verified(
        relative_error=gradients.error,
        parameter=gradients.name,
        output_error=outputs.error,
        buffer_error=buffers.error,
        stages=_unit_names(captured.graph, placement),
        captured=captured,
        placement=placement,
    )
    for kind, each in (("output", outputs), ("buffer", buffers), ("gradient", gradients)):
        if not each.error <= tolerance:
            raise _off(kind, each, tolerance)
    return found


def _off(kind: str, found: Worst, tolerance: float) -> VerifyError:
    module = found.name.rpartition(".")[0] or "the model"
    return VerifyError(
        f"split, the model has another {kind} {found.name!r} in {module!r}: it differs by "
        f"{found.error:.1e} of its norm, more than {tolerance:.0e}",
        "something that crosses between two stages is lost there, such as a side effect of a "
        "forward function",
        "Keep the module that does this whole: put it inside one unit",
    )


def _placement(graph: Graph, stages: int | Sequence[Sequence[str]]) -> Placement:
    if isinstance(stages, int):
        even = Costs(
            nodes={unit.name: NodeCost(forward_seconds=1.0) for unit in placed_units(graph)},
            source="estimated",
            device="any",
        )
        return partition(graph, even, num_stages=stages).placement
    stage_of = {name: number for number, names in enumerate(stages) for name in names}
    return place(graph, stage_of, num_stages=len(stages))


def _unit_names(graph: Graph, placement: Placement) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(unit.name for unit in graph.units if stage in placement.stages[unit.name])
        for stage in range(placement.num_stages)
    )


def _check_real(model: nn.Module) -> None:
    empty = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    require(
        not empty,
        what=f"{empty[:1]!r} and {max(len(empty) - 1, 0)} more parameters are on the meta device",
        why="numbers are compared, and these have none",
        mend="Verify a model with real parameters, a smaller one of the same kind for example",
    )


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients, attributes and random numbers afterwards."""
    before = snapshots(model.modules())
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(), uncompiled():
            yield
    finally:
        for each in before:
            each.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf if leaf is None else copy(leaf)
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _scalar(output: Any) -> Tensor | None:
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    is_scalar = isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad
    return found if is_scalar else None


def _cotangent(tensor: Tensor, generator: torch.Generator) -> Tensor:
    made = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return made.to(tensor.device, tensor.dtype)


def _wanting(tensors: dict[str, Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in tensors.values() if tensor is not None and tensor.requires_grad]


def _kept(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
