# SPDX-License-Identifier: Apache-2.0
"""Why nothing can run as asked for, with what comes nearest."""

from __future__ import annotations

from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.errors import PlanError, PlanErrors
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan.text import size
from smdist.modelparallel.core.planner.candidates import (
    Candidate,
    degree_choices,
    microbatch_choices,
)
from smdist.modelparallel.core.planner.evaluate import Trial
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.samples import Samples
from smdist.modelparallel.core.planner.search import Search

_NEAREST: Final = 3


def impossible(
    problem: Problem, samples: Samples, search: Search, tried: tuple[Candidate, ...]
) -> PlanError:
    """The error that says so."""
    if not tried:
        return _too_few_units(problem, samples)
    misfits = list(search.misfits.values())
    full = [each.candidate for each in misfits if each.why is None]
    if full:
        return _too_full(problem, search, full)
    return _refused([each.why for each in misfits if each.why is not None])


def memory_sentence(trial: Trial) -> str:
    """What the fullest rank would hold at least."""
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


def _too_few_units(problem: Problem, samples: Samples) -> PlanError:
    graph = samples.exact(max(microbatch_choices(problem))).graph
    units, least = len(placed_units(graph)), min(degree_choices(problem))
    virtual = problem.virtual_stages or 1
    asked = [f"pipeline_parallel_degree {least}"] if problem.pipeline_parallel_degree else []
    asked += [f"data_parallel_degree {problem.data_parallel_degree}"] * bool(
        problem.data_parallel_degree
    )
    asked += [f"virtual_stages {problem.virtual_stages}"] * bool(problem.virtual_stages)
    asked += [f"the schedule {problem.schedule!r}"]
    return PlanError(
        " and ".join(asked),
        f"that takes at least {least * virtual} stages, and {graph.model} has {units} units",
        f"Ask for at most {units} stages, or open modules into finer units",
    )


def _too_full(problem: Problem, search: Search, full: list[Candidate]) -> PlanError:
    """The leanest candidate of each pipeline degree, leanest first."""
    lean: dict[int, Candidate] = {}
    for candidate in sorted(full, key=leanness):
        lean.setdefault(candidate.pipeline, candidate)
    trials = []
    for candidate in lean.values():
        try:
            trials.append(search.evaluator.leanest(candidate))
        except OptionError:
            continue
    trials.sort(key=lambda trial: (trial.peak_bytes, trial.candidate.pipeline))
    limit = problem.memory_limit_bytes
    assert limit is not None
    told = "; ".join(f"{trial.candidate}: {memory_sentence(trial)}" for trial in trials[:_NEAREST])
    least = size(trials[0].peak_bytes) if trials else "more"
    return PlanError(
        f"device_memory is {size(limit)}",
        f"no plan fits in that. Nearest are {told}",
        f"The smallest device_memory that would do is {least}. Or use more ranks in a pipeline, "
        "smaller microbatches, or a leaner optimizer state",
    )


def leanness(candidate: Candidate) -> tuple[int, int]:
    """Small microbatches need the least; then the order in which schedules are preferred."""
    return -candidate.num_microbatches, candidate.preference


def _refused(reasons: list[OptionError]) -> PlanError:
    unique = {str(each): each for each in reasons}
    faults = [PlanError(each.what, each.why, each.mend) for each in unique.values()]
    return faults[0] if len(faults) == 1 else PlanErrors(tuple(faults[:_NEAREST]))
