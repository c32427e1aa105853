# SPDX-License-Identifier: Apache-2.0
"""Check that a split model computes the same as the whole model: `smp.verify`.

Both models run in one process on the same microbatches, forward and backward. Outputs, the loss,
the summed gradients and all buffers are compared; the model is restored afterwards. Dropout draws
the same numbers in both runs. A third run, of the whole model on the whole batch, measures the
effect of microbatches alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.capture.module_snapshot import snapshots, uncompiled
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.pytree import map_leaves
from smdist.modelparallel.torch.randomness import RngStream, drawing
from smdist.modelparallel.torch.verification.compare import Worst, tensors_of, worst
from smdist.modelparallel.torch.verification.single_process_pipeline import Roots, backward, replay
from smdist.modelparallel.torch.verification.verify_request import (
    StagedPlan,
    Stages,
    check_request,
    cut,
    placement_of,
)

_ROUNDING = 1e-4


class VerifyError(OptionError):
    """Error for a difference between the split model and the whole model above the tolerance.

    The attribute `kind` is "output", "gradient" or "buffer"; `about` is the name of the tensor.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of a comparison: how close the split model is to the whole one.

    Attributes:
        relative_error: Relative difference of the gradient that differs most.
        parameter: Name of the parameter with this gradient; empty if no gradient was computed.
        output_error: Relative difference of the output that differs most.
        buffer_error: Relative difference of the buffer that differs most after the run.
        stages: Names of the modules on each stage.
        captured: Recorded forward pass of the model.
        placement: Stage of each module, and the values sent between stages.
        microbatches: Number of microbatches that the batch was split into.
        microbatch_error: Effect of microbatches alone: relative difference between the whole
            model's gradients over microbatches and over the whole batch. None for one microbatch,
            or if the outputs have no samples along dimension 0.
    """

    relative_error: float
    parameter: str
    output_error: float
    buffer_error: float
    stages: tuple[tuple[str, ...], ...]
    captured: Captured = field(repr=False)
    placement: Placement = field(repr=False)
    microbatches: int = 1
    microbatch_error: float | None = None

    def __str__(self) -> str:
        model, number = self.captured.graph.model, len(self.stages)
        where = f" ({self.parameter})" if self.parameter else ""
        return (
            f"{model} on {number} stage{'s' * (number > 1)} is the whole model: gradients differ by"
            f" {self.relative_error:.1e} at most{where}, outputs by {self.output_error:.1e},"
            f" buffers by {self.buffer_error:.1e}{self._on_microbatches()}"
        )

    def _on_microbatches(self) -> str:
        if self.microbatch_error is None:
            return ""
        text = (
            f"; in {self.microbatches} microbatches gradients differ from those of the whole batch"
            f" by {self.microbatch_error:.1e}"
        )
        causes = " (BatchNorm, dropout, losses that are no mean over samples)"
        return text + causes * (self.microbatch_error > _ROUNDING)


def verify(
    model: nn.Module, batch: Any, *,
    stages: Stages | None = None, plan: StagedPlan | None = None, microbatches: int | None = None,
    loss: Callable[[Any], Tensor] | None = None, tolerance: float = 1e-5,
) -> Verified:  # fmt: skip
    """Check that a model split into stages computes the same as the whole model, in one process.

    Args:
        model: Model with real parameters, in the mode in which it will be used.
        batch: A tensor, a tuple of positional arguments or a dict of keyword arguments.
        stages: Number of stages, of about equally many units (modules), or the names of the units
            in each stage. Default: 2.
        plan: Plan that has the stages, in place of `stages`.
        microbatches: Number of equal parts that the batch is split into along dimension 0. The loss
            is the mean over all parts. Default: the plan's number, or 1.
        loss: Function that gets the output of a microbatch, and returns a scalar. Default: the
            output's `loss`, or the output itself if it is a scalar. If there is neither, the
            backward pass starts from all outputs, with random numbers as gradients.
        tolerance: Largest relative difference that is accepted.

    Returns:
        The differences that were found, all within the tolerance.

    Raises:
        VerifyError: A difference is larger; the message names the tensor that differs most.
        CaptureError: The model's forward pass cannot be recorded.
        OptionError: A stage is empty, a unit is missing, the batch cannot be split, the plan is
            for another model, or the model is on the meta device.
    """
    check_request(model, stages, plan, tolerance)
    parts = cut(batch, microbatches, plan)
    captured = capture(model, parts[0], opened=plan.opened if plan is not None else ())
    placement = placement_of(captured.graph, stages, plan)
    runs = _Runs(captured, placement, loss)
    plain, split = runs.plain(parts), runs.split(parts)
    whole = runs.plain([batch]) if len(parts) > 1 else None
    found = _found(plain, split)
    _judge(found, tolerance)
    error = None if whole is None else _microbatch_error(whole, plain, len(parts))
    return _verified(found, (captured, placement), (len(parts), error))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """Results of one run, by name: outputs, gradients of parameters and inputs, and buffers."""

    outputs: dict[str, Tensor | None]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor | None]


class _Runs:
    """Runner of the whole model and of its stages, for comparison.

    Each run restores the model afterwards, so all runs begin with the same state of the model.
    """

    def __init__(
        self, captured: Captured, placement: Placement, loss: Callable[[Any], Tensor] | None
    ) -> None:
        self._captured, self._placement, self._loss = captured, placement, loss
        self._model = captured.model

    def plain(self, parts: list[Any]) -> _Numbers:
        """Run the whole model on each microbatch; return outputs, gradients and buffers.

        Args:
            parts: Arguments of the model, by microbatch.
        """

        def run(arguments: tuple[Any, Any], roots: Callable[[Any], Roots], draws: RngStream) -> Any:
            args, kwargs = arguments
            with drawing(self._captured.program, draws):
                output = self._model(*args, **kwargs)
                backward(roots(output))  # in the block, since a checkpoint draws its numbers again
            return output

        return self._each(parts, run)

    def split(self, parts: list[Any]) -> _Numbers:
        """Run the split model on each microbatch; return outputs, gradients and buffers.

        Args:
            parts: Arguments of the model, by microbatch.
        """
        stages = [
            StageModule(self._captured, self._placement, number)
            for number in range(self._placement.num_stages)
        ]

        def run(arguments: tuple[Any, Any], roots: Callable[[Any], Roots], draws: RngStream) -> Any:
            return replay(stages, self._placement, arguments, roots, draws)

        return self._each(parts, run)

    def _each(self, parts: list[Any], run: Callable[..., Any]) -> _Numbers:
        outputs: dict[str, Tensor | None] = {}
        inputs: dict[str, Tensor | None] = {}
        with _restored(self._model):
            for number, part in enumerate(parts):
                arguments: Any = map_leaves(_copied, arguments_of(part))
                roots = partial(self._roots, place=(number, len(parts)))
                output = run(arguments, roots, RngStream(microbatch=number))
                where = f" of microbatch {number}" if len(parts) > 1 else ""
                found = tensors_of(output).items()
                outputs |= {f"{name}{where}": _kept(tensor) for name, tensor in found}
                wanting = enumerate(_wanting(tensors_of(arguments)))
                inputs |= {f"input {at}{where}": _kept(tensor.grad) for at, tensor in wanting}
            trained = self._model.named_parameters()
            return _Numbers(
                outputs=outputs,
                gradients={name: _kept(p.grad) for name, p in trained} | inputs,
                buffers={name: _kept(buffer) for name, buffer in self._model.named_buffers()},
            )

    def _roots(self, output: Any, place: tuple[int, int]) -> Roots:
        scalar = _checked(self._loss(output)) if self._loss else _scalar(output)
        if scalar is not None:
            return [(scalar / place[1], None)]
        generator = torch.Generator().manual_seed(0)
        floats = [t for t in tensors_of(output).values() if t is not None and t.requires_grad]
        return [(tensor, _cotangent(tensor, generator, place)) for tensor in floats]


def _found(plain: _Numbers, split: _Numbers) -> dict[str, Worst]:
    return {
        "output": worst(plain.outputs, split.outputs),
        "buffer": worst(plain.buffers, split.buffers),
        "gradient": worst(plain.gradients, split.gradients),
    }


def _judge(found: dict[str, Worst], tolerance: float) -> None:
    for kind, each in found.items():
        if not each.error <= tolerance:
            raise _off(kind, each, tolerance)


def _verified(
    found: dict[str, Worst],
    split: tuple[Captured, Placement],
    cut_into: tuple[int, float | None],
) -> Verified:
    captured, placement = split
    return Verified(
        relative_error=found["gradient"].error,
        parameter=found["gradient"].name,
        output_error=found["output"].error,
        buffer_error=found["buffer"].error,
        stages=_unit_names(captured.graph, placement),
        captured=captured,
        placement=placement,
        microbatches=cut_into[0],
        microbatch_error=cut_into[1],
    )


def _microbatch_error(whole: _Numbers, parts: _Numbers, number: int) -> float | None:
    """Return the largest relative difference of gradients between two runs of the whole model.

    Args:
        whole: Results of the run on the whole batch.
        parts: Results of the run on its microbatches.
        number: Number of microbatches.

    Returns:
        The difference; None if the outputs have no samples along dimension 0, so that gradients
        cannot be compared.
    """
    for name, output in whole.outputs.items():
        part = parts.outputs.get(f"{name} of microbatch 0")
        if output is None or part is None or not output.dim() or not output.is_floating_point():
            continue
        if not part.dim() or len(output) != number * len(part):
            return None
    names = [name for name in whole.gradients if not name.startswith("input ")]
    return worst(
        {name: whole.gradients[name] for name in names}, {n: parts.gradients[n] for n in names}
    ).error


def _off(kind: str, found: Worst, tolerance: float) -> VerifyError:
    module = found.name.rpartition(".")[0] or "the model"
    return VerifyError(
        f"the {kind} {found.name!r} of {module!r} differs between the split and the whole model by "
        f"{found.error:.1e} of its norm, more than the tolerance {tolerance:.0e}",
        "a side effect of a forward function on one stage does not reach the other stages",
        "Pass stages= that put the modules with a common side effect on one stage",
        about=found.name,
        kind=kind,
    )


def _unit_names(graph: Graph, placement: Placement) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(unit.name for unit in graph.units if stage in placement.stages[unit.name])
        for stage in range(placement.num_stages)
    )


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers, gradients and attributes, and random states, after the block."""
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


def _checked(loss: Any) -> Tensor:
    is_scalar = isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad
    what = f"{type(loss).__name__} of shape {tuple(getattr(loss, 'shape', ()))}"
    require(
        is_scalar,
        what=f"loss returned a {what}",
        why="the backward pass begins at a scalar that requires a gradient",
        hint="Return a scalar computed from the output, such as its mean",
        about="loss",
    )
    assert isinstance(loss, Tensor)
    return loss


def _cotangent(tensor: Tensor, generator: torch.Generator, place: tuple[int, int]) -> Tensor:
    """Return random gradients for the output of one microbatch.

    Random gradients are made for the whole batch, and the rows of this microbatch are returned. So
    each microbatch gets different gradients.

    Args:
        tensor: Output of the microbatch.
        generator: Generator of the random numbers; its seed is the same for each microbatch.
        place: Number of the microbatch, and number of microbatches.
    """
    number, parts = place
    if not tensor.dim():
        return torch.full_like(tensor, 1 / parts)
    rows, *rest = tensor.shape
    made = torch.randn((parts * rows, *rest), generator=generator, dtype=torch.float64)
    return made[number * rows :][:rows].to(tensor.device, tensor.dtype)


def _wanting(tensors: dict[str, Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in tensors.values() if tensor is not None and tensor.requires_grad]


def _kept(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
