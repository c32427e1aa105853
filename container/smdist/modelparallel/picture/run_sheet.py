# SPDX-License-Identifier: Apache-2.0
"""Data of a run's picture: a measured step, above the step that the simulator predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan.number_format import time_unit
from smdist.modelparallel.core.record import ACTIONS, Event, Track
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate import Timeline
from smdist.modelparallel.core.simulate.replay_run import Replay
from smdist.modelparallel.picture.sheet import RunSheet, Span, StepSheet


def sheet_of_run(
    schedule: Schedule,
    tracks: Sequence[Track],
    replayed: Replay,
    *,
    replica: int = 0,
    step: int | None = None,
) -> RunSheet:
    """Return the picture's content: one recorded step of a pipeline, and the predicted step.

    Args:
        schedule: Schedule of the run.
        tracks: Recorded events of all ranks.
        replayed: Prediction from the measured times of all steps.
        replica: Number of the pipeline.
        step: Number of the step, counted from the first recorded one; None for the last complete
            step.

    Raises:
        OptionError: The step was not recorded completely.
    """
    pipeline = [track for track in tracks if track.replica == replica]
    number = _complete_step(schedule, pipeline, replica, step)
    events = [
        (track.pipeline_rank, event)
        for track in pipeline
        for event in track.events
        if event.step == number
    ]
    spans = {
        "Measured": tuple(_measured(schedule, events)),
        "Predicted": tuple(spans_of(replayed.predicted)),
    }
    panels = tuple(
        StepSheet(title=name, num_ranks=schedule.num_ranks, spans=each)
        for name, each in spans.items()
    )
    return RunSheet(
        title=f"{_title(schedule, tracks, replica)}step {number}",
        subtitle=_subtitle(replayed, panels[0].end),
        panels=panels,
    )


def _title(schedule: Schedule, tracks: Sequence[Track], replica: int) -> str:
    """Return the beginning of the title: schedule, ranks, and the replica if there are several."""
    num_replicas = len({track.replica for track in tracks})
    which = f"replica {replica} of {num_replicas}, " if num_replicas > 1 else ""
    ranks = f"Schedule {schedule.name} on {schedule.num_ranks} ranks"
    return f"{ranks}, {schedule.num_microbatches} microbatches: {which}"


def _subtitle(replayed: Replay, seconds: float) -> str:
    """Return a text with the time of the drawn step, the mean of all steps, and the prediction.

    Args:
        replayed: Measured and simulated times of the run.
        seconds: Seconds of the drawn step.
    """
    scale, unit = time_unit(replayed.measured_seconds)
    is_one = replayed.num_steps * replayed.num_replicas == 1
    drawn = f"this step took {seconds / scale:.3g} {unit}; "
    mean = "measured" if is_one else f"mean of {replayed.basis}"
    bubble = replayed.predicted.bubble_fraction
    return (
        f"{drawn}{mean}: {replayed.measured_seconds / scale:.3g} {unit}, ranks wait"
        f" {replayed.measured_bubble:.1%}; predicted from the times of actions:"
        f" {replayed.predicted_seconds / scale:.3g} {unit}, {bubble:.1%}"
    )


def spans_of(timeline: Timeline) -> Iterator[Span]:
    """Yield a bar for each action and each sum of gradients of a simulated step."""
    chunk_of = _chunks(timeline.schedule)
    for event in timeline.events():
        yield Span(
            rank=event.rank,
            do=event.action.do,
            chunk=chunk_of[event.action.stage],
            microbatch=event.action.microbatch,
            start=event.start,
            end=event.end,
        )
    for each in timeline.reductions:
        if each.end > each.start:
            chunk = 0 if each.stage is None else chunk_of[each.stage]
            yield Span(
                rank=each.rank, do=None, chunk=chunk, microbatch=0, start=each.start, end=each.end
            )


def _measured(schedule: Schedule, events: Sequence[tuple[int, Event]]) -> Iterator[Span]:
    chunk_of = _chunks(schedule)
    actions = [(rank, event) for rank, event in events if event.kind in ACTIONS]
    begin = min(event.start for _, event in actions)
    for rank, event in actions:
        yield Span(
            rank=rank,
            do=Do(event.kind),
            chunk=chunk_of[event.stage],
            microbatch=event.microbatch,
            start=event.start - begin,
            end=event.end - begin,
        )


def _chunks(schedule: Schedule) -> dict[int, int]:
    """Return the index of each stage among the stages of its rank, by stage."""
    return {stage: chunk for of in schedule.stages_of for chunk, stage in enumerate(of)}


def _complete_step(
    schedule: Schedule, pipeline: Sequence[Track], replica: int, step: int | None
) -> int:
    wanted = [len(order) for order in schedule.orders]
    counts: dict[int, dict[int, int]] = {}
    for track in pipeline:
        for event in track.events:
            if event.kind in ACTIONS:
                by_rank = counts.setdefault(event.step, {})
                by_rank[track.pipeline_rank] = by_rank.get(track.pipeline_rank, 0) + 1
    whole = [
        number
        for number, by_rank in sorted(counts.items())
        if [by_rank.get(rank, 0) for rank in range(schedule.num_ranks)] == wanted
    ]
    steps = ", ".join(map(str, whole)) or "none"
    if not whole or (step is not None and step not in whole):
        raise OptionError(
            f"{'a step' if step is None else f'step {step}'} of pipeline {replica} cannot be drawn",
            f"it was not recorded completely; complete steps are {steps}",
            "Pass one of these steps"
            if whole
            else "Record a step with forward and backward passes",
            about="step",
        )
    return whole[-1] if step is None else step
