# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest plan by which a model is split over ranks: `smp.plan`.

The search needs the time and memory of the model's modules. These costs are measured or estimated.
A model that is too large for all ranks together is refused before any measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core import plan as core
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.layout import Layout, Machine
from smdist.modelparallel.core.layout.from_graph import BorderMessages
from smdist.modelparallel.core.note import UNKNOWN_MEMORY, UNKNOWN_SPEED, Note
from smdist.modelparallel.core.partition.manual import note_on_marks
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.planner import Problem, find_plan
from smdist.modelparallel.core.planner.candidates import degree_choices, microbatch_choices
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.core.planner.resimulate import renewed
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.torch.planning.plan_request import Request, read_request
from smdist.modelparallel.torch.planning.sampler import CostSource
from smdist.modelparallel.torch.planning.split_variants import LayoutCosts, grouped, split_copy
from smdist.modelparallel.torch.program.batch import Batch, Example
from smdist.modelparallel.torch.program.partition_marks import around_marks, marks_of


def check_memory(model: nn.Module, problem: Problem) -> None:
    """Check that all ranks together can hold the weights, gradients and optimizer state of a model.

    Args:
        model: The model.
        problem: Cluster and options to plan for, with the memory of a rank.

    Raises:
        OptionError: The model needs more memory than all ranks together have.
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
            f"no plan fits, since weights, gradients and optimizer state of"
            f" {type(model).__name__} take {size(held)}, and {ranks} ranks have"
            f" {size(limit * ranks)} together",
            f"Use {least} or more ranks in a pipeline, or an optimizer with less state",
            about="device_memory",
            kind="memory",
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
    overlaps_sums: bool = True,
) -> Plan:  # fmt: skip
    """Find the plan with which a model trains fastest on a number of ranks or on a cluster.

    Args:
        model: The model, with values or on the meta device.
        example: Arguments of the model for the batch of one replica; dimension 0 is samples.
        world: Number of ranks on one host, or a Cluster.
        device_memory: Memory that a rank may use, in bytes or as "16GiB". Default: the cluster's.
        microbatches: Number of parts that the batch is split into; "auto" tries several.
        pipeline_parallel_degree: Number of ranks in a pipeline; "auto" tries several.
        data_parallel_degree: Number of pipelines, each with a replica; "auto" tries several.
        pipeline: Name of the schedule, such as "1f1b"; "auto" tries all schedules.
        active_microbatches: Largest number of microbatches in flight, for "interleaved".
        virtual_stages: Number of stages on each rank. Default: the planner chooses.
        optimize: "speed" balances mainly the time of stages, "memory" balances their memory.
        memory_weight: In place of optimize: weight of memory, from 0 (time alone) to 1.
        auto_partition: False puts modules on the stages given by `smp.partition` and
            `smp.set_partition`.
        default_partition: Stage of all other modules, with auto_partition=False.
        costs: "measure", "estimate", or "auto", which estimates models on the meta device only.
        state: Bytes in memory per element of a trained parameter. Default: Adam in fp32, 16 bytes.
        overlaps_sums: False if gradients are summed after the last backward pass, as with
            sharding; True if they are summed during this pass.

    Returns:
        The plan, with a forecast of its step time and memory.

    Raises:
        OptionError: The model or an option is wrong (all faults are listed), or no plan fits into
            the memory.
    """
    options: dict[str, Any] = {
        "microbatches": _number(microbatches), "active_microbatches": active_microbatches,
        "pipeline_parallel_degree": _number(pipeline_parallel_degree),
        "data_parallel_degree": _number(data_parallel_degree), "virtual_stages": virtual_stages,
        "optimize": optimize, "memory_weight": memory_weight, "auto_partition": auto_partition,
        "default_partition": default_partition, "state": state, "pipeline": pipeline,
        "overlaps_sums": overlaps_sums,
    }  # fmt: skip
    request = read_request(
        model, example, world, costs=costs, device_memory=device_memory, **options
    )
    return plan_of(model, request, options)


def plan_of(model: nn.Module, request: Request, options: dict[str, Any]) -> Plan:
    """Find the fastest plan for arguments of `plan` that were read and checked.

    Args:
        model: The model.
        request: Checked arguments.
        options: Options of `plan` by name, with None for "auto" where a number is expected.

    Raises:
        OptionError: The model cannot be recorded, or no plan fits into the memory.
    """
    options = dict(options)
    auto_partition, schedule = options["auto_partition"], options.pop("pipeline")
    marks = {} if auto_partition else marks_of(model)
    problem = Problem(
        cluster=request.cluster, at=request.sampler.at, batch_size=request.batch_size,
        device_memory=request.memory_bytes, marks=marks, opened=around_marks(marks),
        schedule=schedule, **options,
    )  # fmt: skip
    if request.sampler.measures:
        check_memory(model, problem)
    ignored = note_on_marks(marks_of(model)) if auto_partition else None
    found, dropped = _at_sizes_that_work(problem, request.sampler)
    return _finished(found, problem, request.sampler, *dropped, *filter(None, [ignored]))


def forecast(
    plan: core.Plan, model: nn.Module, example: Example, world: int | Cluster, *,
    device_memory: int | str | None = None, costs: str = "auto", state: StateBytes = _ADAM,
) -> Plan:  # fmt: skip
    """Return a plan with a new forecast of its step time and memory, for instance after an edit.

    Stages, schedule and number of microbatches are not changed.

    Args:
        plan: A plan, for instance from `Plan.load`.
        model: The model, with values or on the meta device.
        example: Arguments of the model for the batch of one replica; dimension 0 is samples.
        world, device_memory, costs, state: As in `smp.plan`: where the model will be trained, and
            the source of the times and bytes. Costs of split layers are estimated.

    Raises:
        PlanError: The plan does not fit the model (all faults are listed), or a rank needs too much
            memory.
    """
    request = read_request(
        model, example, world, costs=costs, device_memory=device_memory, state=state
    )
    tensor, machine = plan.tensor_parallel_degree, Machine(cluster=request.cluster)
    messages: Mapping[str, BorderMessages] = {}
    if tensor > 1:
        copy = split_copy(model, Batch.of(example), tensor)
        messages = copy.messages
        request = read_request(
            copy.model, example, grouped(request.cluster, tensor), costs="estimate",
            device_memory=device_memory, state=state,
        )  # fmt: skip
    layout = Layout(tensor=tensor, offload=plan.offload_activations)
    source = LayoutCosts(request.sampler, layout, machine, messages, request.batch_size)
    request = replace(request, sampler=source)
    problem = Problem(
        cluster=request.cluster, at=request.sampler.at, batch_size=request.batch_size,
        device_memory=request.memory_bytes, state=state, overlaps_sums=plan.sharding == "none",
    )  # fmt: skip
    outdated = {UNKNOWN_SPEED} | ({UNKNOWN_MEMORY} if problem.memory_limit_bytes else set())
    kept = [] if plan.is_stale else [each for each in plan.notes if each.kind not in outdated]
    return _finished(renewed(plan, problem), problem, request.sampler, *kept)


def _at_sizes_that_work(problem: Problem, sampler: CostSource) -> tuple[core.Plan, list[Note]]:
    """Return the fastest plan, and a note on each size of microbatch that had to be left out.

    A size is left out if the model cannot be recorded or measured with such microbatches. If the
    user chose this size, the error is raised instead.

    Args:
        problem: Cluster, batch and options to plan for.
        sampler: Source of the model's graphs and costs.
    """
    failed: dict[int, SizeError] = {}
    while True:
        left = replace(problem, dropped=frozenset(failed))
        first = next(iter(failed.values()), None)
        if first is not None and not microbatch_choices(left):
            raise first
        try:
            return find_plan(left), [sampler.note(error) for error in failed.values()]
        except SizeError as error:
            if problem.microbatches or error.num_microbatches in failed:
                raise
            failed[error.num_microbatches] = error


def _finished(found: core.Plan, problem: Problem, sampler: CostSource, *more: Note) -> Plan:
    notes = sampler.notes(found.num_microbatches, frozenset(found.opened))
    return Plan.of(found, problem, *notes, *more)


def _number(value: int | str) -> int | None:
    """Return None for "auto", else the value unchanged; the planner refuses other strings."""
    return None if value == "auto" else value  # type: ignore[return-value]
