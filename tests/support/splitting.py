# SPDX-License-Identifier: Apache-2.0
"""A model run both ways: split over ranks, and whole in one process on the same microbatches.

expected = plain_step(specimen, microbatches=4)          in any process
found = split_step(specimen, pipeline)                    on each rank, its own part
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
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.capture import Captured, arguments_of, capture
from smdist.modelparallel.torch.executor import Executor, Feed
from smdist.modelparallel.torch.randomness import Draws, drawing
from smdist.modelparallel.torch.replay import backward
from smdist.modelparallel.torch.stage import StageModule
from smdist.modelparallel.torch.verify_request import placement_of

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a step left: of one process everything, of a rank what it holds.

    Attributes:
        losses: By microbatch; None where the last stage is elsewhere.
        gradients: By first name in the model.
        buffers: By name in the model.
    """

    losses: list[Tensor] | None
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How a model is split: as `make_schedule` takes it."""

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
    """The model's own, or the mean square of what it returns."""
    found = output.get("loss") if isinstance(output, Mapping) else None
    return output.square().mean() if found is None else found


def parts_of(specimen: zoo.Specimen, num_microbatches: int) -> list[Any]:
    """Its batch, cut."""
    batch = specimen.batch
    whole = Batch.of(dict(batch) if isinstance(batch, Mapping) else batch)
    return [whole.microbatch(num_microbatches, at) for at in range(num_microbatches)]


def plain_step(
    specimen: zoo.Specimen, num_microbatches: int, *, loss: Loss = loss_of, seed: int = 0
) -> Ran:
    """One process, one microbatch after the other, gradients accumulated."""
    parts = parts_of(specimen, num_microbatches)
    model, captured = specimen.model, capture(specimen.model, parts[0])
    model.zero_grad(set_to_none=True)
    losses = []
    for number, part in enumerate(parts):
        args, kwargs = arguments_of(part)
        with drawing(captured.program, Draws(seed=seed, microbatch=number)):
            found = loss(model(*args, **kwargs))
            backward([(found / num_microbatches, None)])
        losses.append(found.detach())
    return Ran(
        losses=losses,
        gradients={name: _copy(p.grad) for name, p in model.named_parameters()},
        buffers={name: b.clone() for name, b in model.named_buffers()},
    )


class Split:
    """A specimen on the ranks of a group: this rank's stages and executor."""

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
        """About as many units on each stage; the first placement fixes where they are."""
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
        """Other microbatches from now on."""
        self.parts = parts
        self.captured = capture(self.specimen.model, parts[0])
        self.placement = self.place(self.captured)
        self.executor.adopt(self.captured, self.placement)

    def feed(self, loss: Loss = loss_of) -> Feed:
        """The mean over microbatches of a loss."""

        def feed(microbatch: int, call: Any) -> Any:
            found = loss(call(arguments_of(self.parts[microbatch])))
            return found.detach(), [(found / len(self.parts), None)]

        return feed

    def step(self, *, loss: Loss = loss_of, seed: int = 0, backward: bool = True) -> Ran:
        """One step from gradients of None."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=True)

        def draws(microbatch: int) -> Draws:
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
    def draws(microbatch: int, *, seed: int = 0) -> Draws:
        """The random numbers that `plain_step` draws."""
        return Draws(seed=seed, microbatch=microbatch)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of this rank, under their first names in the model, each once."""
        first = {alias: p.name for p in self.captured.graph.parameters for alias in p.aliases}
        found = {
            first.get(name, name): parameter
            for stage in self.stages.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
        }
        yield from found.items()


def merged(parts: list[Ran]) -> Ran:
    """What all ranks of a pipeline left; gradients of tied parameters are summed."""
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
