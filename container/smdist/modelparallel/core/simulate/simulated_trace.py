# SPDX-License-Identifier: Apache-2.0
"""Export of a simulated step: rows of a table, and a trace for chrome://tracing.

Pictures are drawn from the rows. The trace opens in Perfetto (ui.perfetto.dev) with one track a
rank. Its names and tracks are the same as in an executor's recorded trace, for comparison.
Format: Trace Event Format, Google, "JSON Object Format" with complete events ("ph": "X").
"""

from __future__ import annotations

from collections.abc import Iterator

from smdist.modelparallel.core.schedule.actions import Action
from smdist.modelparallel.core.simulate.timeline import Timeline

_COMPUTE, _REDUCE = 0, 1  # "processes" of the trace; each rank is a "thread" of both
_MICROSECONDS = 1e6


def rows(timeline: Timeline) -> list[dict[str, object]]:
    """Return one row for each action, then one for each reduction, as JSON types."""
    return [*_action_rows(timeline), *_reduction_rows(timeline)]


def chrome_trace(timeline: Timeline) -> dict[str, object]:
    """Return the trace as a document for json.dump."""
    events = [*_names(timeline), *_actions(timeline), *_reductions(timeline)]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def label(timeline: Timeline, action: Action) -> str:
    """Return the action's name: `F3`, or `2F3` if ranks have several stages."""
    has_one = timeline.schedule.num_stages == timeline.schedule.num_ranks
    return f"{action.do.value}{action.microbatch}" if has_one else str(action)


def _action_rows(timeline: Timeline) -> Iterator[dict[str, object]]:
    for event in timeline.events():
        yield {
            "rank": event.rank,
            "do": event.action.do.value,
            "stage": event.action.stage,
            "microbatch": event.action.microbatch,
            "start_seconds": event.start,
            "end_seconds": event.end,
            "held_bytes": event.held_bytes,
        }


def _reduction_rows(timeline: Timeline) -> Iterator[dict[str, object]]:
    for reduction in timeline.reductions:
        yield {
            "rank": reduction.rank,
            "do": "reduce",
            "stage": reduction.stage,
            "microbatch": None,
            "start_seconds": reduction.start,
            "end_seconds": reduction.end,
            "held_bytes": None,
        }


def _names(timeline: Timeline) -> Iterator[dict[str, object]]:
    processes = {_COMPUTE: "pipeline", **({_REDUCE: "replicas"} if timeline.reductions else {})}
    for process, name in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        for rank in range(timeline.schedule.num_ranks):
            track = {"ph": "M", "pid": process, "tid": rank}
            yield {**track, "name": "thread_name", "args": {"name": f"rank {rank}"}}
            yield {**track, "name": "thread_sort_index", "args": {"sort_index": rank}}


def _actions(timeline: Timeline) -> Iterator[dict[str, object]]:
    for event in timeline.events():
        yield {
            "ph": "X",
            "name": label(timeline, event.action),
            "cat": event.action.do.value,
            "pid": _COMPUTE,
            "tid": event.rank,
            "ts": event.start * _MICROSECONDS,
            "dur": (event.end - event.start) * _MICROSECONDS,
            "args": {"stage": event.action.stage, "microbatch": event.action.microbatch},
        }


def _reductions(timeline: Timeline) -> Iterator[dict[str, object]]:
    for reduction in timeline.reductions:
        yield {
            "ph": "X",
            "name": "reduce" if reduction.stage is None else f"reduce {reduction.stage}",
            "cat": "reduce",
            "pid": _REDUCE,
            "tid": reduction.rank,
            "ts": reduction.start * _MICROSECONDS,
            "dur": (reduction.end - reduction.start) * _MICROSECONDS,
            "args": {"stage": reduction.stage},
        }
