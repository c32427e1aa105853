# SPDX-License-Identifier: Apache-2.0
"""Comparison of a plan's forecast with the recorded steps of a run.

    step   = compute + bubble + exposed communication
    compute                  actions of a rank, mean over the ranks of a pipeline
    bubble                   rest of the time until the last action of all ranks; waiting for
                             messages between stages is part of it
    exposed communication    sums of gradients over replicas, after the last action
    memory                   bytes of the fullest rank

While steps are recorded, a rank waits for its accelerator after each action, so that the times are
those of the device. The optimizer's update and the loading of data are not part of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from smdist.modelparallel.core.comparison.advice import Causes, advice
from smdist.modelparallel.core.comparison.comparison_parts import (
    BUBBLE,
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    STEP,
    Advice,
    Comparison,
    Part,
)
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.plan import Forecast, Plan
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.record import REDUCE, Track
from smdist.modelparallel.core.simulate.replay_run import RecordedStep, awaited, recorded_steps

__all__ = ["Advice", "Comparison", "Part", "compare_plan"]

_UNCOUNTED: Final = "tensors in the memory of a CPU are not counted"


def compare_plan(plan: Plan, tracks: Sequence[Track], edges: Sequence[Edge]) -> Comparison:
    """Compare a plan with a run that it was used in; the first recorded step is left out.

    Args:
        plan: Plan with a forecast.
        tracks: Recorded events of the ranks of one or more pipelines.
        edges: Values that stages send to each other.

    Raises:
        PlanError: The plan has no valid forecast, the record has no complete step of the plan's
            schedule, or it is of a run whose stages have other modules.
    """
    forecast = _forecast(plan)
    _check_stages(plan, edges)
    found = recorded_steps(plan.actions, tracks)
    if not found:
        raise PlanError(
            "the record has no complete step of this plan",
            f"a step has the actions of {plan.pipeline_parallel_degree} ranks and"
            f" {plan.num_microbatches} microbatches in the schedule {plan.schedule}",
            "Pass the trace of a run with this plan, with whole training steps",
            about="trace",
            kind="mismatch",
        )
    numbers = sorted({number for _, number in found})
    numbers = numbers[1:] or numbers
    chosen = {place: step for place, step in found.items() if place[1] in numbers}
    measured = _measured(chosen, tracks, plan.pipeline_parallel_degree)
    causes = _causes(plan, forecast, list(chosen.values()), tracks, edges, numbers)
    peaks = [track.peak_bytes for track in tracks if track.peak_bytes is not None]
    predicted = _predicted(forecast)
    parts = [
        Part(name=name, unit="seconds", predicted=predicted[name], measured=measured[name])
        for name in (STEP, COMPUTE, BUBBLE, COMMUNICATION)
    ]
    peak = max(peaks, default=None)
    missing = _UNCOUNTED if peak is None else ""
    memory = predicted[MEMORY]
    parts.append(Part(name=MEMORY, unit="bytes", predicted=memory, measured=peak, missing=missing))
    return Comparison(
        parts=tuple(parts),
        advice=advice(plan, parts, causes),
        num_steps=len(numbers),
        num_replicas=len({replica for replica, _ in chosen}),
    )


def _forecast(plan: Plan) -> Forecast:
    """Return the forecast of a plan.

    Raises:
        PlanError: There is none, or the plan was edited after it was made.
    """
    if plan.forecast is None or plan.is_stale:
        raise PlanError(
            "the plan has no forecast" if plan.forecast is None else "the plan was edited",
            "there is no prediction of it to compare with a run",
            "Make a plan with sagemaker-dist plan model.py --save FILE, and run with it",
            about="plan",
            kind="stale",
        )
    return plan.forecast


def _check_stages(plan: Plan, edges: Sequence[Edge]) -> None:
    """Check that modules whose results are sent are in the plan's stages.

    Raises:
        PlanError: A module is in another stage; the first one is named.
    """
    stage_of = {unit: stage for stage, units in enumerate(plan.stages) for unit in units}
    for edge in edges:
        unit = edge.value.partition("#")[0]
        expected = stage_of.get(unit, edge.source)
        if edge.source != expected:
            raise PlanError(
                "the record is of a run with another plan",
                f"there, stage {edge.source} sends the result of {unit!r}, which is in stage"
                f" {expected} of this plan",
                "Pass the plan that the run was started with",
                about="trace",
                kind="mismatch",
            )


def _predicted(forecast: Forecast) -> dict[str, float]:
    """Return the predicted number of each part, by its name."""
    pipeline = forecast.step_seconds - forecast.reduce_seconds
    bubble = forecast.bubble_fraction * pipeline
    return {
        STEP: forecast.step_seconds,
        COMPUTE: pipeline - bubble,
        BUBBLE: bubble,
        COMMUNICATION: forecast.reduce_seconds,
        MEMORY: max((each.total_bytes for each in forecast.memory), default=0),
    }


def _measured(
    steps: dict[tuple[int, int], RecordedStep], tracks: Sequence[Track], num_ranks: int
) -> dict[str, float]:
    """Return the measured seconds of each part, averaged over steps, replicas and ranks.

    Args:
        steps: Complete steps, by (replica, number of the step).
        tracks: Recorded events of all ranks.
        num_ranks: Number of ranks of a pipeline.
    """
    ends: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for track in tracks:
        for event in track.events:
            if event.kind == REDUCE:
                ends[track.replica, event.step].append(event.end)
    compute = fmean(step.busy(rank) for step in steps.values() for rank in range(num_ranks))
    pipeline = fmean(step.seconds for step in steps.values())
    exposed = fmean(max([0.0, *(end - step.end for end in ends[at])]) for at, step in steps.items())
    return {
        STEP: pipeline + exposed,
        COMPUTE: compute,
        BUBBLE: pipeline - compute,
        COMMUNICATION: exposed,
    }


def _causes(
    plan: Plan, forecast: Forecast, steps: Sequence[RecordedStep], tracks: Sequence[Track],
    edges: Sequence[Edge], numbers: Sequence[int],
) -> Causes:  # fmt: skip
    """Return the facts that tell the causes of a long bubble apart.

    Args:
        plan: Plan of the run.
        forecast: Forecast of the plan.
        steps: Measured steps of all replicas.
        tracks: Recorded events of all ranks.
        edges: Values sent between stages.
        numbers: Numbers of the measured steps.
    """
    ranks = range(plan.pipeline_parallel_degree)
    busy = [fmean(step.busy(rank) for step in steps) for rank in ranks]
    rank_of = plan.actions.rank_of
    expected = [
        sum(stage.seconds for at, stage in enumerate(forecast.stages) if rank_of[at] == rank)
        for rank in ranks
    ]
    waited = sum(seconds for _, seconds in awaited(tracks, edges, frozenset(numbers)))
    return Causes(
        message_seconds=waited / (len(steps) * len(ranks)),
        imbalance=_imbalance(busy),
        predicted_imbalance=_imbalance(expected),
        busiest=max(ranks, key=busy.__getitem__),
    )


def _imbalance(seconds: Sequence[float]) -> float:
    mean = fmean(seconds)
    return max(seconds) / mean if mean else 1.0
