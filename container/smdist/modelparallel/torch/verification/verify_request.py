# SPDX-License-Identifier: Apache-2.0
"""Arguments of `smp.verify`: their checks, the split of the batch, and the stages."""

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
    """Interface of a plan for `smp.verify`: an object with `stages` and `opened`.

    Two more members are optional. `num_microbatches` is the default number of microbatches. The
    method `check(graph)` checks that the plan fits the model, and returns a `Placement`.
    """

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of the modules in each stage; these modules are not split further."""

    @property
    def opened(self) -> tuple[str, ...]:
        """Names of modules that are divided into the modules inside them."""


def check_request(
    model: nn.Module, stages: Stages | None, plan: StagedPlan | None, tolerance: float
) -> None:
    """Check the arguments of `smp.verify` before the model runs.

    Raises:
        OptionError: An argument is wrong; the error lists all faults.
    """
    raise_all(_faults(model, stages, plan, tolerance))


def cut(batch: Any, microbatches: int | None, plan: StagedPlan | None) -> list[Any]:
    """Split a batch along dimension 0 into microbatches.

    Args:
        batch: Arguments of the model for the whole batch.
        microbatches: Number of equal parts. None uses the plan's number, or 1 without a plan.
        plan: Plan of the split model, or None.

    Returns:
        Arguments of the model, for each microbatch.

    Raises:
        OptionError: The batch cannot be split into this many equal parts.
    """
    parts = getattr(plan, "num_microbatches", 1) if microbatches is None else microbatches
    is_count = isinstance(parts, int) and not isinstance(parts, bool) and parts > 0
    require(
        is_count,
        what=f"microbatches is {parts!r}",
        why="it has to be the number of parts that the batch is split into",
        hint="Pass an integer of at least 1",
        about="microbatches",
    )
    if parts == 1:
        return [batch]
    whole = Batch.of(batch)
    return [whole.microbatch(parts, at) for at in range(parts)]


def placement_of(graph: Graph, stages: Stages | None, plan: StagedPlan | None) -> Placement:
    """Assign the modules of a model to stages.

    Args:
        graph: Graph of the model's recorded forward pass.
        stages: Number of stages, or the names of the modules on each stage. None means 2 stages.
        plan: Plan that has the stages; None if `stages` is used.

    Raises:
        OptionError: A stage is empty, a module is missing, or the plan is for another model.
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
        about="stages",
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
            f"{len(empty)} parameters are on the meta device, such as {empty[0]!r}",
            "their values are needed to compare two runs",
            "Verify a model with real parameters, for example a smaller one of the same class",
            about="model",
        )
    if plan is not None and stages is not None:
        why = "a plan has stages of its own"
        hint = "Pass either stages or plan"
        yield OptionError(f"stages is {stages!r} and a plan is given", why, hint, about="stages")
    if not tolerance > 0:
        yield OptionError(
            f"tolerance is {tolerance!r}",
            "the split model adds numbers in another order, so results differ in the last digits",
            "Pass a number above 0, such as 1e-5",
            about="tolerance",
        )
