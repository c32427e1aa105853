# SPDX-License-Identifier: Apache-2.0
"""`smp.plan`: from a model and an example batch to the fastest plan for a number of ranks.

The model is captured at each size of microbatch that the planner tries. The costs of its units are
measured, or estimated where the model is on meta; then the core's planner decides. A model that is
too large for all ranks together is refused before anything is measured.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core import plan as core
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.partition.manual import note_on_marks
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.planner import Problem, find_plan
from smdist.modelparallel.core.planner.candidates import degree_choices, microbatch_choices
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.core.planner.resimulate import renewed, replay
from smdist.modelparallel.core.planner.write_plan import UNKNOWN_MEMORY
from smdist.modelparallel.picture import Picture, sheet_of
from smdist.modelparallel.torch.planning.plan_request import Request, read_request
from smdist.modelparallel.torch.planning.sampler import Sampler
from smdist.modelparallel.torch.program.batch import Batch, Example
from smdist.modelparallel.torch.program.partition_marks import around_marks, marks_of


def require_room(model: nn.Module, problem: Problem) -> None:
    """Check that all ranks together can hold the weights, gradients and optimizer state of a model.

    Raises:
        OptionError: The model needs more memory than there is.
    """
    limit, state = problem.memory_limit_bytes, problem.state
    if limit is None:
        return
    whole = state.weight + state.gradient + state.optimizer
    held = sum(
        each.numel() * (whole if each.requires_grad else each.element_size())
        for each in model.parameters()
    )
    ranks = max(degree_choices(problem))
    if held > limit * ranks:
        least = -(-int(held) // limit)
        raise OptionError(
            f"device_memory is {size(limit)}",
            f"no plan fits in that: weights, gradients and optimizer state of"
            f" {type(model).__name__} are {size(held)}, and {ranks} ranks have"
            f" {size(limit * ranks)} together",
            f"Use {least} ranks in a pipeline or more, or a leaner optimizer state",
            about="device_memory",
        )


_ADAM = StateBytes()


def plan(
    model: nn.Module, example: Example | Batch, world: int | Cluster, *,
    device_memory: int | str | None = None, microbatches: int | str = "auto",
    pipeline_parallel_degree: int | str = "auto", data_parallel_degree: int | str = "auto",
    pipeline: str = "auto", active_microbatches: int | None = None,
    virtual_stages: int | None = None, optimize: str | None = None,
    memory_weight: float | None = None, auto_partition: bool = True,
    default_partition: int | None = None, costs: str = "auto", state: StateBytes = _ADAM,
) -> Plan:  # fmt: skip
    """Find the fastest way to train `model` on the ranks of `world`: of one host, or of a Cluster.

    Args:
        example: Batch of one replica, as the model is called with it; dimension 0 is samples.
        device_memory: Memory that a rank may use: bytes, or "16GiB". Default: the cluster's.
        microbatches: Number of parts that the batch is cut into.
        pipeline: Schedule; "auto" tries all. Some take active_microbatches or virtual_stages.
        optimize, memory_weight: Balance of stages by "speed" or "memory", or a weight from 0 to 1.
        auto_partition: True if the planner places units; otherwise they go where `smp.partition`
            and `smp.set_partition` say, and all others to stage `default_partition`.
        costs: "measure" runs units, "estimate" counts operations; "auto" estimates on meta alone.
        state: Bytes that a trained parameter holds in memory. Default: Adam in fp32, 16 bytes.

    Raises:
        OptionError: All faults, by module or option; or no plan fits, and what would fit.
    """
    options: dict[str, Any] = {
        "microbatches": _number(microbatches), "active_microbatches": active_microbatches,
        "pipeline_parallel_degree": _number(pipeline_parallel_degree),
        "data_parallel_degree": _number(data_parallel_degree), "virtual_stages": virtual_stages,
        "optimize": optimize, "memory_weight": memory_weight, "auto_partition": auto_partition,
        "default_partition": default_partition, "state": state, "pipeline": pipeline,
    }  # fmt: skip
    said: dict[str, Any] = {"costs": costs, "device_memory": device_memory}
    return _planned(model, read_request(model, example, world, **said, **options), options)


def _planned(model: nn.Module, asked: Request, options: dict[str, Any]) -> Plan:
    auto_partition, schedule = options["auto_partition"], options.pop("pipeline")
    marks = {} if auto_partition else marks_of(model)
    problem = Problem(
        cluster=asked.cluster, at=asked.sampler.at, batch_size=asked.batch_size,
        device_memory=asked.memory_bytes, marks=marks, opened=around_marks(marks),
        schedule=schedule, **options,
    )  # fmt: skip
    if asked.sampler.measures:
        require_room(model, problem)
    ignored = note_on_marks(marks_of(model)) if auto_partition else None
    found, dropped = _at_sizes_that_work(problem, asked.sampler)
    return _finished(found, problem, asked.sampler, *dropped, *filter(None, [ignored]))


def forecast(
    plan: core.Plan, model: nn.Module, example: Example, world: int | Cluster, *,
    device_memory: int | str | None = None, costs: str = "auto", state: StateBytes = _ADAM,
) -> Plan:  # fmt: skip
    """Forecast a plan anew after it was edited; its decisions stay.

    Args:
        plan: A plan, for instance from `Plan.load`.
        model, example, world, device_memory, costs, state: See `plan`. Notes of a plan that was
            not edited stay, apart from notes about a speed or memory size that is known now.

    Raises:
        PlanError: All faults of the plan for this model, or a rank would hold too much.
    """
    asked = read_request(
        model, example, world, costs=costs, device_memory=device_memory, state=state
    )
    problem = Problem(
        cluster=asked.cluster, at=asked.sampler.at, batch_size=asked.batch_size,
        device_memory=asked.memory_bytes, state=state,
    )  # fmt: skip
    gone = ("How fast", *[UNKNOWN_MEMORY] * bool(problem.memory_limit_bytes))
    kept = [] if plan.is_stale else [each for each in plan.notes if not each.startswith(gone)]
    return _finished(renewed(plan, problem), problem, asked.sampler, *kept)


class Plan(core.Plan):
    """Plan of the core that can also be drawn."""

    _problem: Problem | None = None

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the stages, their memory and one step; write the picture if a path is given.

        A notebook displays the returned picture.

        Raises:
            OptionError: The plan was loaded or edited, or the path does not end as a picture does.
            SetupError: matplotlib is not installed.
        """
        if self._problem is None or self.forecast is None or self.is_stale:
            raise OptionError(
                f"the plan of {self.model} cannot be drawn",
                "what its units cost is not in its file",
                "Draw what smp.forecast(plan, model, example, world) returns",
            )
        done = replay(self, self._problem)
        costs = done.view.costs
        seconds = {unit: costs.of(unit).seconds for units in self.stages for unit in units}
        picture = Picture(sheet_of(self, self.forecast, seconds, done.trial.timeline))
        if path is not None:
            picture.save(path)
        return picture


def _at_sizes_that_work(problem: Problem, sampler: Sampler) -> tuple[core.Plan, list[str]]:
    """Return the plan, and notes on the sizes of microbatches that were not tried."""
    said: dict[int, SizeError] = {}
    while True:
        left = replace(problem, dropped=frozenset(said))
        first = next(iter(said.values()), None)
        if first is not None and not microbatch_choices(left):
            raise first
        try:
            return find_plan(left), [sampler.note(error) for error in said.values()]
        except SizeError as error:
            if problem.microbatches or error.num_microbatches in said:
                raise
            said[error.num_microbatches] = error


def _finished(found: core.Plan, problem: Problem, sampler: Sampler, *more: str) -> Plan:
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    said = sampler.notes(found.num_microbatches, frozenset(found.opened))
    plan = Plan(**{**values, "notes": tuple(dict.fromkeys([*found.notes, *said, *more]))})
    object.__setattr__(plan, "_problem", problem)  # no field, so files and comparisons leave it out
    return plan


def _number(asked: int | str) -> int | None:
    """Return None, the planner's value, for "auto"; the planner itself refuses other words."""
    return None if asked == "auto" else asked  # type: ignore[return-value]
