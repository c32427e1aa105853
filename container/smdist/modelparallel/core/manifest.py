# SPDX-License-Identifier: Apache-2.0
"""Which parameters a checkpoint holds, and which stage writes each.

Parameters keep the names that they have in the whole model, so a checkpoint of one split is read
by any other. A tied parameter is held by several stages and written once, by the first of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from smdist.modelparallel.core.graph import Graph, Parameter
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan

_UNUSED = 0  # the stage of parameters that no node uses: they are saved as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter in a checkpoint.

    Attributes:
        name: Its first name in the model.
        aliases: Its other names: readers may ask for any of them.
        stages: Those that hold it, in order.
        written_by: The stage that writes it.
    """

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    is_trained: bool
    stages: tuple[int, ...]
    written_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The layout of a checkpoint.

    Attributes:
        model: Class of the model: for people.
        num_stages: How many stages write it.
        entries: Each parameter once, in the model's order.
    """

    model: str
    num_stages: int
    entries: tuple[Entry, ...]

    def of_stage(self, stage: int) -> tuple[Entry, ...]:
        """What one stage writes."""
        return tuple(each for each in self.entries if each.written_by == stage)

    def document(self) -> dict[str, Any]:
        """Spell it as JSON's types."""
        return asdict(self)


def manifest(graph: Graph, plan: Plan) -> Manifest:
    """Find the layout that follows from a plan.

    Raises:
        PlanError: The plan is not for this model.
    """
    holders = holders_of(graph, plan.check(graph))
    return Manifest(
        model=graph.model,
        num_stages=len(plan.stages),
        entries=tuple(_entry(each, holders.get(each.name, ())) for each in graph.parameters),
    )


def holders_of(graph: Graph, placement: Placement) -> dict[str, tuple[int, ...]]:
    """The stages that hold each parameter that is used, by its name."""
    stages: defaultdict[str, set[int]] = defaultdict(set)
    for node in graph.nodes:
        for name in node.parameters:
            stages[name].update(placement.stages.get(node.name, ()))
    return {name: tuple(sorted(found)) for name, found in stages.items()}


def _entry(parameter: Parameter, stages: tuple[int, ...]) -> Entry:
    held = stages or (_UNUSED,)
    return Entry(
        name=parameter.name,
        aliases=parameter.aliases,
        shape=parameter.shape,
        dtype=parameter.dtype,
        is_trained=parameter.is_trained,
        stages=held,
        written_by=held[0],
    )
