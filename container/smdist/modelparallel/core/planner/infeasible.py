# SPDX-License-Identifier: Apache-2.0
"""Errors of requests for which no plan is possible, with the nearest possible plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.plan_errors import PlanError, PlanErrors, PlanMemoryError
from smdist.modelparallel.core.planner.candidate_search import Search
from smdist.modelparallel.core.planner.candidates import (
    Candidate,
    degree_choices,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.cost_samples import Samples
from smdist.modelparallel.core.planner.evaluate import Misfit, SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem

_NEAREST: Final = 3
_MOST_REASONS: Final = 8


def impossible(
    problem: Problem, samples: Samples, search: Search, tried: tuple[Candidate, ...]
) -> PlanError:
    """Return the error that explains why no plan is possible.

    Args:
        problem: Model, cluster, batch and options.
        samples: Graphs and costs of the model.
        search: Search that found no candidate that can run.
        tried: Candidates that this search evaluated.
    """
    if not tried and not problem.auto_partition:
        return _other_marks(problem)
    if not tried:
        return _too_few_units(problem, samples)
    misfits = [search.misfits[each] for each in tried]
    full = [each.candidate for each in misfits if each.why is None]
    trials = list(leanest(search, full))
    if trials:
        return _out_of_memory(problem, trials)
    reasons = [search.misfits[each].why for each in tried]
    return _refused([each for each in reasons if each is not None])


def memory_sentence(trial: SimulatedCandidate) -> str:
    """Return a clause with the memory that the fullest rank needs, and the largest part of it.

    Args:
        trial: Simulated candidate.
    """
    rank, split = trial.fullest_rank, trial.pipeline.split
    peak = trial.timeline.peaks[rank]
    stages = trial.pipeline.stages_of[rank]
    where = " and ".join(_span(split.partition.stages, stage) for stage in stages)
    parts = {
        "weights, gradients and optimizer state": peak.static_bytes,
        "activations": peak.saved_bytes,
        "receive buffers": peak.receive_bytes,
        "workspace": peak.workspace_bytes,
    }
    most = max(parts, key=lambda name: parts[name])
    return (
        f"it needs {size(peak.total_bytes)} on rank {rank} ({where}), "
        f"of which {size(parts[most])} for {most}"
    )


def _span(stages: tuple[tuple[str, ...], ...], stage: int) -> str:
    units = stages[stage]
    if len(units) < 2:
        return f"stage {stage}: {''.join(units)}"
    return f"stage {stage}: {units[0]} to {units[-1]}"


def _requested(problem: Problem) -> str:
    """Return the user's option that requests too many stages, as a text for the error."""
    for name in ("pipeline_parallel_degree", "virtual_stages", "data_parallel_degree"):
        if getattr(problem, name):
            return name
    return "schedule"


def _too_few_units(problem: Problem, samples: Samples) -> PlanError:
    graph = samples.exact(max(microbatch_choices(problem))).graph
    units, least = len(placed_units(graph)), min(degree_choices(problem))
    if not units:
        return _no_units(graph.model)
    virtual = problem.virtual_stages or 1
    requested = [f"pipeline_parallel_degree {least}"] if problem.pipeline_parallel_degree else []
    requested += [f"data_parallel_degree {problem.data_parallel_degree}"] * bool(
        problem.data_parallel_degree
    )
    requested += [f"virtual_stages {problem.virtual_stages}"] * bool(problem.virtual_stages)
    requested += [f"the schedule {problem.schedule!r}"]
    return PlanError(
        " and ".join(requested),
        f"this needs at least {least * virtual} stages with at least one module each, and "
        f"{graph.model} is split into only {units} modules",
        f"Request at most {units} stages, or divide modules of the model into smaller ones",
        about=_requested(problem),
        kind="too_many_stages",
    )


def _no_units(model: str) -> PlanError:
    return PlanError(
        f"{model} cannot be planned",
        "no module inside it has parameters or state, so no module can be placed on a stage",
        "If the model itself has parameters, pass it inside another module, such as "
        "nn.Sequential(model)",
        about="model",
        kind="no_modules",
    )


def _other_marks(problem: Problem) -> PlanError:
    requested = [f"schedule {problem.schedule!r}", f"{problem.cluster.size} ranks"]
    for name in ("pipeline_parallel_degree", "data_parallel_degree", "virtual_stages"):
        number = getattr(problem, name)
        requested += [f"{name} {number}"] if number else []
    return PlanError(
        f"smp.partition() and default_partition request {problem.num_marked_stages} stages",
        f"no pipeline can have exactly this number of stages with {', '.join(requested)}",
        "Request as many stages as pipeline_parallel_degree times virtual_stages",
        about="marks",
        kind="conflict",
    )


def leanest(search: Search, full: list[Candidate]) -> Iterator[SimulatedCandidate]:
    """Yield simulations of candidates that need the least memory.

    There is one candidate for each number of ranks of a pipeline, and at most 3 in all.

    Args:
        search: Search that evaluated the candidates.
        full: Candidates that do not fit in memory.
    """
    seen: set[int] = set()
    for candidate in sorted(full, key=lambda each: _memory_key(search, each)):
        if candidate.pipeline not in seen and len(seen) < _NEAREST:
            try:
                yield search.evaluator.leanest(candidate)
            except OptionError as error:  # the schedule cannot be made with these numbers
                search.misfits[candidate] = Misfit(candidate=candidate, why=error)
            else:
                seen.add(candidate.pipeline)


def _out_of_memory(problem: Problem, trials: list[SimulatedCandidate]) -> PlanError:
    """Return the error that no plan fits in memory; it names the plans that need the least memory.

    Args:
        problem: Model, cluster, batch and options.
        trials: Simulations of the plans that need the least memory.
    """
    trials.sort(key=lambda trial: (trial.peak_bytes, trial.candidate.pipeline))
    limit = problem.memory_limit_bytes
    assert limit is not None
    nearest = "; ".join(f"{trial.candidate}: {memory_sentence(trial)}" for trial in trials)
    least = trials[0].peak_bytes
    error = PlanMemoryError(
        f"device_memory is {size(limit)}",
        f"no plan fits in this memory. The plans that need the least memory are: {nearest}",
        f"Use ranks with at least {size(least)} ({least:,} bytes), more ranks in a pipeline, "
        "smaller microbatches, activation checkpointing in the model, a smaller batch, or an "
        "optimizer with less state",
        about="device_memory",
    )
    error.least_bytes = least
    return error


def _memory_key(search: Search, candidate: Candidate) -> tuple[int, int, int]:
    """Return a sort key for candidates: least memory first, then small microbatches.

    If two candidates are equal in both, the planner's preferred candidate comes first.
    """
    least = search.evaluator.least_bytes(candidate)
    return least, -candidate.num_microbatches, candidate.preference


def _refused(reasons: list[OptionError]) -> PlanError:
    """Return the error with up to 8 different reasons why no candidate can run."""
    flat = [part for each in reasons for part in getattr(each, "faults", (each,))]
    unique = {str(each): each for each in flat}
    faults = [
        PlanError(each.what, each.why, each.hint, each.about, each.kind) for each in unique.values()
    ]
    return faults[0] if len(faults) == 1 else PlanErrors(tuple(faults[:_MOST_REASONS]))
