# SPDX-License-Identifier: Apache-2.0
"""Parts of a program that stages run: their steps, and the values that enter and leave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    Spec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLink:
    """Value that one stage sends to another.

    Attributes:
        number: Number of the link, equal on all ranks.
        value: Name of the value.
        spec: Shape and dtype for one microbatch.
        source: Stage that computes the value.
        target: Stage that reads it.
        has_gradient: True if its gradient is sent back.
    """

    number: int
    value: str
    spec: Spec
    source: int
    target: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """Part of a program that one stage runs.

    Attributes:
        stage: Number of the stage.
        steps: Steps in the order of execution.
        inputs: Inputs of the model that the stage reads itself, in their order in the model.
        received: Values from earlier stages.
        sent: Values for later stages; a value with several readers has a link for each.
        losses: Scalars that the model's call() passed to add_loss(), computed here.
        is_last: True if the stage computes the model's outputs and the loss.
    """

    stage: int
    steps: tuple[ProgramStep, ...]
    inputs: tuple[str, ...]
    received: tuple[StageLink, ...]
    sent: tuple[StageLink, ...]
    losses: tuple[str, ...]
    is_last: bool

    @property
    def sent_values(self) -> tuple[str, ...]:
        """Names of the values that the stage sends, each once."""
        return tuple(dict.fromkeys(link.value for link in self.sent))

    @property
    def moving_values(self) -> tuple[str, ...]:
        """Names of the sent values whose gradients come back, each once."""
        return tuple(dict.fromkeys(link.value for link in self.sent if link.has_gradient))


def parts_of(program: LayerProgram, placement: Placement) -> tuple[StagePart, ...]:
    """Return the part of each stage.

    Args:
        program: Program of the model.
        placement: Stages of the program's steps.
    """
    links = _links(placement, program.specs)
    last = placement.num_stages - 1
    stages_of = placement.stages
    return tuple(
        StagePart(
            stage=stage,
            steps=tuple(each for each in program.steps if stage in stages_of[each.name]),
            inputs=tuple(each for each in program.inputs if stage in stages_of[each]),
            received=tuple(each for each in links if each.target == stage),
            sent=tuple(each for each in links if each.source == stage),
            losses=_losses(program, stages_of, stage),
            is_last=stage == last,
        )
        for stage in range(placement.num_stages)
    )


def _links(placement: Placement, specs: Mapping[str, Spec]) -> list[StageLink]:
    return [
        StageLink(
            number=number, value=edge.value, spec=specs[edge.value], source=edge.source,
            target=edge.target, has_gradient=edge.has_gradient,
        )
        for number, edge in enumerate(placement.edges)
    ]  # fmt: skip


def _losses(
    program: LayerProgram, stages_of: Mapping[str, tuple[int, ...]], stage: int
) -> tuple[str, ...]:
    writer = {value: each.name for each in program.steps for value in each.writes}
    return tuple(name for name in program.losses if stages_of[writer[name]][:1] == (stage,))
