# SPDX-License-Identifier: Apache-2.0
"""Reader of the traces that `chrome_trace` writes; all faults of a trace are reported at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.plan import plan_json
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import shown
from smdist.modelparallel.core.record.chrome_format import RUN, VERSION
from smdist.modelparallel.core.record.events import ACTIONS, Event, Track

_SECONDS: Final = 1e-6  # seconds in a microsecond
_HINT: Final = "Record one with model.traced(), and save it with trace.gather().save(path)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankFacts:
    """Fields of a `Track` without its events."""

    rank: int
    pipeline_rank: int
    replica: int
    host: str
    clock_error_seconds: float
    num_lost: int
    device: str
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunFacts:
    """Entry of a trace that viewers do not show."""

    version: int
    ranks: tuple[_RankFacts, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Arguments of a slice."""

    step: int
    stage: int
    microbatch: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Complete event ("ph": "X") of a trace; times are in microseconds."""

    ph: str
    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: _Facts

    @property
    def event(self) -> Event:
        """Event that was recorded."""
        facts = self.args
        return Event(
            kind=self.cat,
            stage=facts.stage,
            microbatch=facts.microbatch,
            step=facts.step,
            start=self.ts * _SECONDS,
            end=(self.ts + self.dur) * _SECONDS,
            detail=facts.detail,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """Parts of a trace that are read; slices by their index in the list."""

    traceEvents: Mapping[str, _Slice]  # noqa: N815 - a key of the format
    smdist: _RunFacts


def read_trace(
    found: object, *, where: str = "this trace"
) -> tuple[tuple[Track, ...], tuple[Edge, ...]]:
    """Return the recorded events of all ranks, and the values that stages send to each other.

    Args:
        found: JSON value of the file.
        where: Name of the file in errors.

    Raises:
        PlanError: The value is not a trace that this project wrote, or parts of it are wrong; all
            wrong parts are reported at once.
    """
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        what, why = f"{where} is not a trace", 'it is no object with a list "traceEvents"'
        raise PlanError(what, why, _HINT, about="path", kind="not_trace")
    run = found.get(RUN)
    if not isinstance(run, dict) or run.get("version") != VERSION:
        version = run.get("version") if isinstance(run, dict) else None
        what = f"{where} has no facts about ranks of version {VERSION}, but {shown(version)}"
        why = "another program or release wrote this trace"
        raise PlanError(what, why, _HINT, about="path", kind="version")
    slices = {
        str(at): row
        for at, row in enumerate(found["traceEvents"])
        if not isinstance(row, dict) or row.get("ph") not in ("M", "s", "f")
    }
    document = {"traceEvents": slices, RUN: run}
    trace = plan_json.convert(_Trace, document, where, what="a trace")
    raise_faults(_faults(trace, where))
    events: defaultdict[int, list[Event]] = defaultdict(list)
    # Slices are sorted by start, but an executor records an event when it ends.
    for each in sorted(trace.traceEvents.values(), key=lambda each: each.ts + each.dur):
        events[each.pid].append(each.event)
    tracks = [
        Track(events=tuple(events[each.rank]), **_fields(each)) for each in trace.smdist.ranks
    ]
    return tuple(sorted(tracks, key=lambda each: each.rank)), trace.smdist.edges


def _fields(rank: _RankFacts) -> dict[str, Any]:
    return {name: getattr(rank, name) for name in _RankFacts.__dataclass_fields__}


def _faults(trace: _Trace, where: str) -> Iterator[OptionError]:
    """Yield an error for each slice of a rank that is not described, or with a negative time."""
    known = {each.rank for each in trace.smdist.ranks}
    for at, each in trace.traceEvents.items():
        about = ("traceEvents", int(at))
        if each.pid not in known:
            what = f"{where}, traceEvents[{at}] is of rank {each.pid}"
            why = f"the trace describes the ranks {sorted(known)}"
            yield PlanError(what, why, "Restore the original trace", about=(*about, "pid"))
        if each.dur < 0:
            what = f"{where}, traceEvents[{at}] takes {each.dur:g} microseconds"
            why = "times are not negative"
            yield PlanError(what, why, "Restore the original trace", about=(*about, "dur"))
        if each.cat in ACTIONS and min(each.args.stage, each.args.microbatch) < 0:
            what = f"{where}, traceEvents[{at}] has stage {each.args.stage} and microbatch"
            what += f" {each.args.microbatch}"
            why = "actions have a stage and a microbatch of at least 0"
            yield PlanError(what, why, "Restore the original trace", about=(*about, "args"))
