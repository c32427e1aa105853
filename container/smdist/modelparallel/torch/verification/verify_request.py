# SPDX-License-Identifier: Apache-2.0
"""Arguments of `smp.verify`: checked before anything runs, then turned into parts and stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import nn

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition import partition
from smdist.modelparallel.core.placement import Placement, place, placed_units
from smdist.modelparallel.torch.program.batch import Batch

Stages = int | Sequence[Sequence[str]]


class StagedPlan(Protocol):
    """Plan as `verify` reads it; `num_microbatches` and `check` are used as well if it has them."""

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of the units, by stage."""

    @property
    def opened(self) -> tuple[str, ...]:
        """Modules that were gone into, so that the modules in them are units."""


def check_request(
    model: nn.Module, stages: Stages | None, plan: StagedPlan | None, tolerance: float
) -> None:
    """Check the arguments before the model runs.

    Raises:
        OptionError: All faults, by argument.
    """
    raise_all(_faults(model, stages, plan, tolerance))


def cut(batch: Any, microbatches: int | None, plan: StagedPlan | None) -> list[Any]:
    """Cut a batch into `microbatches` parts; the default is the plan's number, or one.

    Raises:
        OptionError: The batch cannot be cut into this many parts.
    """
    parts = getattr(plan, "num_microbatches", 1) if microbatches is None else microbatches
    is_count = isinstance(parts, int) and not isinstance(parts, bool) and parts > 0
    require(
        is_count,
        what=f"microbatches is {parts!r}",
        why="it is how many parts the batch is cut into",
        hint="Pass an integer of at least 1",
    )
    if parts == 1:
        return [batch]
    whole = Batch.of(batch)
    return [whole.microbatch(parts, at) for at in range(parts)]


def placement_of(graph: Graph, stages: Stages | None, plan: StagedPlan | None) -> Placement:
    """Place the units on stages.

    Raises:
        OptionError: A stage is empty, a unit is missing, or the plan is for another model.
    """
    check = getattr(plan, "check", None)
    if check is not None:
        checked: Placement = check(graph)
        return checked
    wanted = plan.stages if plan is not None else 2 if stages is None else stages
    if not isinstance(wanted, int):
        stage_of = {name: number for number, names in enumerate(wanted) for name in names}
        return place(graph, stage_of, num_stages=len(wanted))
    units = placed_units(graph)
    require(
        1 <= wanted <= len(units),
        what=f"stages is {wanted}",
        why=f"{graph.model} has {len(units)} units to put on stages",
        hint=f"Use 1 to {len(units)} stages",
    )
    even = {unit.name: NodeCost(forward_seconds=1.0) for unit in units}
    costs = Costs(nodes=even, source="estimated", device="any")
    return partition(graph, costs, num_stages=wanted).placement


def _faults(
    model: nn.Module, stages: Stages | None, plan: StagedPlan | None, tolerance: float
) -> Iterator[OptionError]:
    empty = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if empty:
        yield OptionError(
            f"{empty[:1]!r} and {len(empty) - 1} more parameters are on the meta device",
            "numbers are compared, and these have none",
            "Verify a model with real parameters, a smaller one of the same kind for example",
        )
    if plan is not None and stages is not None:
        why = "the stages are the plan's, or those that you pass"
        yield OptionError(
            f"stages is {stages!r} and there is a plan", why, "Pass one of the two", about="stages"
        )
    if not tolerance > 0:
        yield OptionError(
            f"tolerance is {tolerance!r}",
            "sums in another order differ in the last digits",
            "Pass a number above 0, such as 1e-5",
            about="tolerance",
        )
