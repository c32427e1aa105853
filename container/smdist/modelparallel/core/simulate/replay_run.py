# SPDX-License-Identifier: Apache-2.0
"""Replay of a recorded run in the simulator, to compare measured and simulated step times.

The simulator gets the schedule, and the recorded times of stages and messages. Times of stages are
averages over steps, microbatches and replicas. If the simulated step is shorter than the measured
one, the averages hide delays, such as a single slow step.

The time in which a rank prepares an action, after the previous action has ended, counts as part of
the action. The time in which the rank waits for a message does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.record import ACTIONS, RECEIVE, Event, Track, transfers
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.simulate.simulation import simulate
from smdist.modelparallel.core.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Simulated and measured step of a pipeline, from the first action's start to the last's end.

    Attributes:
        predicted: Simulated step.
        measured_seconds: Seconds of one step, averaged over steps and replicas.
        measured_idle: Fraction of the step in which each rank of the pipeline waited, 0 to 1.
        num_steps: Number of measured steps; a step that several replicas run counts once.
        num_replicas: Number of replicas with measured steps.
    """

    predicted: Timeline
    measured_seconds: float
    measured_idle: tuple[float, ...]
    num_steps: int
    num_replicas: int = 1

    @property
    def predicted_seconds(self) -> float:
        """Seconds of the simulated step."""
        return self.predicted.pipeline_seconds

    @property
    def predicted_idle(self) -> tuple[float, ...]:
        """Fraction of the simulated step in which each rank of the pipeline waits, from 0 to 1."""
        seconds = self.predicted_seconds
        return tuple(idle / seconds for idle in self.predicted.idle_seconds)

    @property
    def measured_bubble(self) -> float:
        """Mean of `measured_idle` over the ranks: the measured bubble, from 0 to 1."""
        return fmean(self.measured_idle)

    @property
    def error(self) -> float:
        """Relative error of the simulated step time: simulated / measured - 1."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def basis(self) -> str:
        """Number of measured steps and replicas as text: "1 step of 2 replicas"."""
        steps = f"{self.num_steps} step{'s' * (self.num_steps > 1)}"
        return f"{steps} of {self.num_replicas} replicas" if self.num_replicas > 1 else steps

    def __str__(self) -> str:
        seconds = (self.predicted_seconds * 1e3, self.measured_seconds * 1e3)
        lines = [
            f"{self.basis}, schedule {self.predicted.schedule.name}: predicted from the times of"
            " its parts, and measured",
            f"{'':12}{'predicted':>12}{'measured':>12}",
            f"{'step':12}{seconds[0]:>9.2f} ms{seconds[1]:>9.2f} ms   {self.error:+.1%}",
        ]
        pairs = zip(self.predicted_idle, self.measured_idle, strict=True)
        for rank, (predicted, measured) in enumerate(pairs):
            lines.append(f"{f'rank {rank} waits':12}{predicted:>12.1%}{measured:>12.1%}")
        bubbles = (self.predicted.bubble_fraction, self.measured_bubble)
        lines.append(f"{'all ranks':12}{bubbles[0]:>12.1%}{bubbles[1]:>12.1%}")
        return "\n".join(lines)


def replay(
    schedule: Schedule, edges: Sequence[Edge], tracks: Sequence[Track], *, skip: int | None = None
) -> Replay:
    """Simulate the step of a run with the recorded times of its actions and messages.

    Args:
        schedule: Schedule of each pipeline.
        edges: Values sent between stages.
        tracks: Recorded events of all ranks.
        skip: Number of first steps to ignore. By default the first step is ignored, if there are
            others.

    Raises:
        OptionError: No complete step was recorded, or all complete steps are skipped.
    """
    steps = recorded_steps(schedule, tracks)
    first = min(len({number for _, number in steps}) - 1, 1) if skip is None else skip
    begin = sorted({number for _, number in steps})[first:]
    places = [place for place in steps if place[1] in begin]
    chosen = [steps[place] for place in places]
    if not chosen:
        raise OptionError(
            f"{len(steps)} complete steps were recorded, and {max(first, 0)} of them are skipped",
            "at least one complete step is needed, with all actions of all ranks",
            "Record more steps with a backward pass, or pass a smaller skip",
            about="skip",
            kind="missing",
        )
    costs = _costs(schedule, chosen)
    links = _links(tracks, edges, frozenset(begin))
    predicted = simulate(schedule, costs, edges=edges, link=lambda *ranks: links.get(ranks, Link()))
    return Replay(
        predicted=predicted,
        measured_seconds=fmean(step.seconds for step in chosen),
        measured_idle=tuple(
            fmean(1 - step.busy(rank) / step.seconds for step in chosen)
            for rank in range(schedule.num_ranks)
        ),
        num_steps=len({number for _, number in places}),
        num_replicas=len({replica for replica, _ in places}),
    )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Recorded step of one pipeline.

    Attributes:
        work: Seconds of each action, by rank of the pipeline.
        seconds: Seconds from the start of the first action to the end of the last action.
        end: End of the last action, in seconds on the clock of the record.
    """

    work: tuple[Mapping[Action, float], ...]
    seconds: float
    end: float

    def busy(self, rank: int) -> float:
        """Return the seconds of this step in which a rank of the pipeline computed."""
        return sum(self.work[rank].values())


def recorded_steps(
    schedule: Schedule, tracks: Sequence[Track]
) -> dict[tuple[int, int], RecordedStep]:
    """Return all complete steps, by (replica, number of the step)."""
    events: defaultdict[tuple[int, int], dict[int, list[Event]]] = defaultdict(dict)
    for track in tracks:
        for event in track.events:
            by_rank = events[track.replica, event.step]
            by_rank.setdefault(track.pipeline_rank, []).append(event)
    steps = {}
    for place, by_rank in events.items():
        work = tuple(_work(by_rank.get(rank, ())) for rank in range(schedule.num_ranks))
        if all(
            each.keys() == set(order) for each, order in zip(work, schedule.orders, strict=True)
        ):
            actions = [e for each in by_rank.values() for e in each if e.kind in ACTIONS]
            begin = min(event.start for event in actions)
            end = max(event.end for event in actions)
            steps[place] = RecordedStep(work, end - begin, end)
    return steps


def _work(events: Sequence[Event]) -> dict[Action, float]:
    """Return the seconds of each action, including the time since the previous action.

    Time in which the rank waited for a message is not included.

    Args:
        events: Events of one rank in one step, in order.
    """
    work: dict[Action, float] = {}
    before, waited = None, 0.0
    for event in events:
        if event.kind == RECEIVE:
            waited += event.seconds
        elif event.kind in ACTIONS:
            since = event.start if before is None else before + waited
            work[Action(Do(event.kind), event.stage, event.microbatch)] = event.end - since
            before, waited = event.end, 0.0
    return work


def _costs(schedule: Schedule, steps: Sequence[RecordedStep]) -> list[NodeCost]:
    """Return the mean cost of each stage for one microbatch, by stage.

    Args:
        schedule: Schedule of the steps.
        steps: Recorded steps to average.
    """
    seconds: defaultdict[tuple[int, Do], list[float]] = defaultdict(list)
    for step in steps:
        for work in step.work:
            for action, took in work.items():
                seconds[action.stage, action.do].append(took)
    mean = {place: fmean(each) for place, each in seconds.items()}
    return [_cost({do: mean.get((stage, do)) for do in Do}) for stage in range(schedule.num_stages)]


def _cost(seconds: Mapping[Do, float | None]) -> NodeCost:
    """Return the cost of a stage from the mean seconds of each kind of action.

    A backward pass that was not split counts as time for input gradients.

    Args:
        seconds: Mean seconds of each kind of action; None for kinds that did not occur.
    """
    whole, first, second = (seconds[do] for do in (Do.B, Do.I, Do.W))
    if first is None:
        first = whole
    return NodeCost(
        forward_seconds=seconds[Do.F] or 0.0,
        input_gradient_seconds=first or 0.0,
        weight_gradient_seconds=second or 0.0,
    )


def _links(
    tracks: Sequence[Track], edges: Sequence[Edge], steps: frozenset[int]
) -> dict[tuple[int, ...], Link]:
    """Return a link for each pair (sender, receiver) of ranks of the pipeline.

    The latency of a link is the median time of the messages for which the receiver was already
    waiting. The bandwidth of a link is unlimited.

    Args:
        tracks: Recorded events of all ranks.
        edges: Values sent between stages.
        steps: Numbers of the steps to use.
    """
    waited: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
    for each in awaited(tracks, edges, steps):
        waited[each[0]].append(each[1])
    return {ranks: Link(latency_seconds=median(times)) for ranks, times in waited.items()}


def awaited(
    tracks: Sequence[Track], edges: Sequence[Edge], steps: frozenset[int]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield ((sender, receiver), seconds) for each message that its receiver was waiting for.

    Sender and receiver are ranks of the pipeline. The seconds are those from the end of the send to
    the end of the receive.

    Args:
        tracks: Recorded events of all ranks.
        edges: Values sent between stages.
        steps: Numbers of the steps to use.
    """
    for each in transfers(tracks, edges):
        if each.received.step in steps and each.received.start <= each.sent.end:
            ranks = each.sender.pipeline_rank, each.receiver.pipeline_rank
            yield ranks, max(0.0, each.received.end - each.sent.end)
