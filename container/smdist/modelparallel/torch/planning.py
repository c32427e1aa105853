# SPDX-License-Identifier: Apache-2.0
"""`smp.plan`: from a model and an example batch to the fastest plan on some ranks.

The model is captured at the sizes of microbatches that the planner asks for; what its parts take
is measured, or estimated where the model is on meta; the core's planner decides.
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
from smdist.modelparallel.core.planner import Problem, find_plan
from smdist.modelparallel.core.planner.candidates import microbatch_choices
from smdist.modelparallel.core.planner.replay import renewed, replay
from smdist.modelparallel.core.planner.samples import SizeError
from smdist.modelparallel.picture import Picture, sheet_of
from smdist.modelparallel.torch.batch import Batch, Example
from smdist.modelparallel.torch.marks import around_marks, marks_of
from smdist.modelparallel.torch.request import Request, read_request
from smdist.modelparallel.torch.room import require_room
from smdist.modelparallel.torch.sampler import Sampler

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
    """Find the fastest way to train `model` on the ranks of `world`: of one host, or a Cluster.

    Args:
        example: The batch of one replica, as the model is called with it; dimension 0 is samples.
        device_memory: What a rank may use: bytes, or "16GiB". Default: what the cluster says.
        microbatches: Parts of that batch.
        pipeline: The schedule; "auto" tries all. Some take active_microbatches, virtual_stages.
        optimize, memory_weight: "speed" or "memory", or from 0 to 1: what stages are balanced by.
        auto_partition: Whether units are the planner's to place; else they go where
            `smp.partition` and `smp.set_partition` say, the rest to stage `default_partition`.
        costs: "measure" runs units, "estimate" counts operations, "auto" does so for meta alone.
        state: What a trained parameter holds in memory. Default: Adam in fp32, 16 bytes.

    Raises:
        OptionError: All that is wrong, by module or option; or nothing fits, and what would.
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
    """Say anew what a plan takes, after it was edited; its decisions stay.

    Args:
        plan: Such as `Plan.load` reads it.
        model, example, world, device_memory, costs, state: As of `plan`. Notes of a plan that was
            not edited stay, but for those of a device whose speed is known now.

    Raises:
        PlanError: All that is wrong with the plan for this model, or a rank would hold too much.
    """
    asked = read_request(
        model, example, world, costs=costs, device_memory=device_memory, state=state
    )
    problem = Problem(
        cluster=asked.cluster, at=asked.sampler.at, batch_size=asked.batch_size,
        device_memory=asked.memory_bytes, state=state,
    )  # fmt: skip
    gone = ("How fast", *["Nobody said how much memory"] * bool(problem.memory_limit_bytes))
    kept = [] if plan.is_stale else [each for each in plan.notes if not each.startswith(gone)]
    return _finished(renewed(plan, problem), problem, asked.sampler, *kept)


class Plan(core.Plan):
    """A plan of the core, which can be drawn as well."""

    _problem: Problem | None = None

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw stages, memory and one step; write it where a path is given.

        A notebook shows what is returned.

        Raises:
            OptionError: The plan was loaded or edited, or the path's ending is no picture's.
            SetupError: There is no matplotlib.
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
    """The plan, and which sizes of microbatches were not tried."""
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
    object.__setattr__(plan, "_problem", problem)  # no field: files and comparisons leave it out
    return plan


def _number(asked: int | str) -> int | None:
    """What the planner takes for "auto" is None; it refuses other words itself."""
    return None if asked == "auto" else asked  # type: ignore[return-value]
