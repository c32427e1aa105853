# SPDX-License-Identifier: Apache-2.0
"""Model run both ways: split over ranks, and whole in one process on the same microbatches.

expected = plain_step(specimen, microbatches=4)          in any process
found = Split(specimen, pipeline).step()                  on each rank, its own part
worst(expected.gradients, found.gradients)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
import zoo
from torch import Tensor, nn

from smdist.modelparallel.core.placement import Placement, place
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.executor import Executor, Feed
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.randomness import RngStream, drawing
from smdist.modelparallel.torch.verification.single_process_pipeline import backward
from smdist.modelparallel.torch.verification.verify_request import placement_of

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Result of a step: the whole model's in one process, or a rank's own part.

    Attributes:
        losses: Loss of each microbatch; None if the last stage is on another rank.
        gradients: Gradients by first name in the model.
        buffers: Buffers by name in the model.
    """

    losses: list[Tensor] | None
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Options of a split model, as `make_schedule` takes them."""

    schedule: str = "1f1b"
    num_ranks: int = 2
    num_microbatches: int = 4
    virtual_stages: int = 1
    active_microbatches: int | None = None

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.virtual_stages

    def actions(self) -> Schedule:
        return make_schedule(
            self.schedule,
            num_ranks=self.num_ranks,
            num_microbatches=self.num_microbatches,
            virtual_stages=self.virtual_stages,
            active_microbatches=self.active_microbatches,
        )


def loss_of(output: Any) -> Tensor:
    """Return the model's own loss, or else the mean square of its output."""
    found = output.get("loss") if isinstance(output, Mapping) else None
    return output.square().mean() if found is None else found


def parts_of(specimen: zoo.Specimen, num_microbatches: int) -> list[Any]:
    """Return the microbatches of the specimen's batch."""
    batch = specimen.batch
    whole = Batch.of(dict(batch) if isinstance(batch, Mapping) else batch)
    return [whole.microbatch(num_microbatches, at) for at in range(num_microbatches)]


def plain_step(
    specimen: zoo.Specimen, num_microbatches: int, *, loss: Loss = loss_of, seed: int = 0
) -> Ran:
    """Run a step in one process, one microbatch after another, accumulating gradients."""
    parts = parts_of(specimen, num_microbatches)
    model, captured = specimen.model, capture(specimen.model, parts[0])
    model.zero_grad(set_to_none=True)
    losses = []
    for number, part in enumerate(parts):
        args, kwargs = arguments_of(part)
        with drawing(captured.program, RngStream(seed=seed, microbatch=number)):
            found = loss(model(*args, **kwargs))
            backward([(found / num_microbatches, None)])
        losses.append(found.detach())
    return Ran(
        losses=losses,
        gradients={name: _copy(p.grad) for name, p in model.named_parameters()},
        buffers={name: b.clone() for name, b in model.named_buffers()},
    )


class Split:
    """Specimen on the ranks of a group: this rank's stages and executor."""

    def __init__(
        self,
        specimen: zoo.Specimen,
        pipeline: Pipeline,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        self.specimen, self.pipeline = specimen, pipeline
        self.parts = parts_of(specimen, pipeline.num_microbatches)
        self.captured: Captured = capture(specimen.model, self.parts[0])
        self.placement: Placement = self.place(self.captured)
        self.schedule = pipeline.actions()
        group = group or dist.group.WORLD
        self.stages = {
            number: StageModule(self.captured, self.placement, number)
            for number in self.schedule.stages_of[dist.get_rank(group)]
        }
        self.executor = Executor(self.stages, self.placement, self.schedule, group, **options)

    def place(self, captured: Captured) -> Placement:
        """Place about as many units on each stage; the first placement is kept."""
        if not hasattr(self, "_stage_of"):
            first = placement_of(captured.graph, self.pipeline.num_stages, None)
            self._stage_of = {unit.name: first.stages[unit.name] for unit in captured.graph.units}
            return first
        stage_of = {name: stages[0] for name, stages in self._stage_of.items() if stages}
        known = {unit.name for unit in captured.graph.units}
        return place(
            captured.graph,
            {name: stage for name, stage in stage_of.items() if name in known},
            num_stages=self.pipeline.num_stages,
        )

    def adopt(self, parts: list[Any]) -> None:
        """Use other microbatches from now on."""
        self.parts = parts
        self.captured = capture(self.specimen.model, parts[0])
        self.placement = self.place(self.captured)
        self.executor.adopt(self.captured, self.placement)

    def feed(self, loss: Loss = loss_of) -> Feed:
        """Return a feed whose loss is the mean over microbatches."""

        def feed(microbatch: int, call: Any) -> Any:
            found = loss(call(arguments_of(self.parts[microbatch])))
            return found.detach(), [(found / len(self.parts), None)]

        return feed

    def step(self, *, loss: Loss = loss_of, seed: int = 0, backward: bool = True) -> Ran:
        """Run one step that starts without gradients."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=True)

        def draws(microbatch: int) -> RngStream:
            return self.draws(microbatch, seed=seed)

        losses = self.executor.run(self.feed(loss), draws=draws, backward=backward)
        return Ran(
            losses=losses,
            gradients={name: _copy(p.grad) for name, p in self.parameters()},
            buffers={
                name: b.clone() for s in self.stages.values() for name, b in s.named_buffers()
            },
        )

    @staticmethod
    def draws(microbatch: int, *, seed: int = 0) -> RngStream:
        """Return the random numbers that `plain_step` draws."""
        return RngStream(seed=seed, microbatch=microbatch)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters, each once, under its first name in the model."""
        first = {alias: p.name for p in self.captured.graph.parameters for alias in p.aliases}
        found = {
            first.get(name, name): parameter
            for stage in self.stages.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
        }
        yield from found.items()


def merged(parts: list[Ran]) -> Ran:
    """Merge the results of all ranks of a pipeline; gradients of tied parameters are summed."""
    gradients: dict[str, Tensor | None] = {}
    for part in parts:
        for name, gradient in part.gradients.items():
            before = gradients.get(name)
            is_first = before is None or gradient is None
            gradients[name] = (
                (before if gradient is None else gradient) if is_first else (before + gradient)
            )
    buffers = {name: buffer for part in parts for name, buffer in part.buffers.items()}
    losses = next(part.losses for part in parts if part.losses is not None)
    return Ran(losses=losses, gradients=gradients, buffers=buffers)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
