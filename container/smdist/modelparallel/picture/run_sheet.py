# SPDX-License-Identifier: Apache-2.0
"""Collect the data of a run's picture: one step as measured, above the same step as predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.record import ACTIONS, Event, Track
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate import Timeline
from smdist.modelparallel.core.simulate.replay_run import Replay
from smdist.modelparallel.picture.axis_labels import time_unit
from smdist.modelparallel.picture.sheet import RunSheet, Span, StepSheet


def sheet_of_run(
    schedule: Schedule,
    tracks: Sequence[Track],
    replayed: Replay,
    *,
    replica: int = 0,
    step: int | None = None,
) -> RunSheet:
    """Collect one step of one pipeline.

    Args:
        schedule: The schedule that ran.
        tracks: The events of every rank.
        replayed: The prediction from the measured parts, over all steps.
        replica: Index of the pipeline.
        step: Index from the first recorded step; None is the last one that every rank finished.

    Raises:
        OptionError: The step was not recorded completely.
    """
    pipeline = [track for track in tracks if track.replica == replica]
    number = _checked(schedule, pipeline, replica, step)
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
    """Describe the run up to the step's number; the replica is named where there are several."""
    num_replicas = len({track.replica for track in tracks})
    which = f"replica {replica} of {num_replicas}, " if num_replicas > 1 else ""
    ranks = f"Schedule {schedule.name} on {schedule.num_ranks} ranks"
    return f"{ranks}, {schedule.num_microbatches} microbatches: {which}"


def _subtitle(replayed: Replay, seconds: float) -> str:
    """Describe the drawn step's time, the mean of all steps, and the prediction of that mean."""
    scale, unit = time_unit(replayed.measured_seconds)
    is_one = replayed.num_steps * replayed.num_replicas == 1
    drawn = f"this step took {seconds / scale:.3g} {unit}; "
    mean = "measured" if is_one else f"mean of {replayed.basis}"
    bubble = replayed.predicted.bubble_fraction
    return (
        f"{drawn}{mean}: {replayed.measured_seconds / scale:.3g} {unit}, ranks wait"
        f" {replayed.measured_bubble:.1%}; predicted from their parts:"
        f" {replayed.predicted_seconds / scale:.3g} {unit}, {bubble:.1%}"
    )


def spans_of(timeline: Timeline) -> Iterator[Span]:
    """Yield a span for each action and each gradient reduction of a simulated step."""
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
    """Map each stage to its index among the stages of its rank."""
    return {stage: chunk for of in schedule.stages_of for chunk, stage in enumerate(of)}


def _checked(schedule: Schedule, pipeline: Sequence[Track], replica: int, step: int | None) -> int:
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
    if not whole or (step is not None and step not in whole):
        raise OptionError(
            f"step {'of' if step is None else f'{step} of'} pipeline {replica} cannot be drawn",
            f"recorded whole, forward and backward, were {', '.join(map(str, whole)) or 'none'}",
            "Pass one of these" if whole else "Record a whole step",
        )
    return whole[-1] if step is None else step
