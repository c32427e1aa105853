# SPDX-License-Identifier: Apache-2.0
"""One row from its start to what was seen, and the comparison with what was expected."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.faults import actions
from benchmarks.faults.actions import VICTIM
from benchmarks.faults.fault_row import ELSE_SECONDS, Row, Seen
from benchmarks.faults.hosts_job import HostsJob, StartError, wait_until
from benchmarks.faults.log_watch import LogWatch
from benchmarks.harness.hosts import EmulatedHosts

_SCRIPT_SECONDS = 60.0
_END_SECONDS = 60.0  # at least, until a job that still runs is a hang
_ERROR_SECONDS = 5.0  # after the limit of a row
_AGAIN_SECONDS = 180.0  # for the imports of all ranks, on a busy machine
_NEW_FILES = 2  # descriptors that a survivor may have more, such as those of a second group


def play(
    rows: Sequence[Row],
    framework: str,
    emulated: EmulatedHosts,
    machine: AbstractContextManager[object],
) -> list[Seen]:
    """Run rows that share a job on emulated hosts, and return what was seen of each.

    Args:
        rows: One row, or those with the same `together`.
        framework: "torch" or "tensorflow".
        emulated: Hosts that nothing else uses.
        machine: Lock that is held while a job starts, and until a row that must be alone has been
            measured. The end of its job may overlap the start of the next one.
    """
    first = rows[0]
    if first.run is not None:
        with machine:
            seen = [first.run(framework)]
    else:
        seen = _play_on_hosts(rows, framework, emulated, machine)
    for row, each in zip(rows, seen, strict=True):
        each.complaints += complaints_of(row, each)
    return seen


def _play_on_hosts(
    rows: Sequence[Row],
    framework: str,
    emulated: EmulatedHosts,
    machine: AbstractContextManager[object],
) -> list[Seen]:
    job = HostsJob(emulated, rows, framework)
    try:
        with LogWatch(job.logs, rows[0].says) as said:
            with machine:
                _start(job)
                again_at = _measure(job, rows, said) if job.row.is_alone else None
            if not job.row.is_alone:
                again_at = _measure(job, rows, said)
            return _end(job, rows, said, again_at)
    except StartError as error:
        no_start = ["the job did not start"]
        return [Seen(stacks=str(error), complaints=no_start, has_started=False) for _ in rows]
    finally:
        job.close()
        actions.heal(job)


def _start(job: HostsJob) -> None:
    (job.row.begin or HostsJob.start)(job)
    if job.row.until:
        job.wait_for_event(job.row.until)


def _measure(job: HostsJob, rows: Sequence[Row], said: LogWatch) -> float | None:
    """Cause the fault, and wait until all has happened whose time counts.

    Return when the last rank of a row with `again` summed again.
    """
    row = job.row
    if row.action is not None:
        row.action(job)
    else:
        _wait_for_faults(job, rows)
    assert job.fault_at is not None
    again_at = _wait_until_again(job, job.fault_at)
    said.wait(job.fault_at + 2 * ELSE_SECONDS)
    if row.expected.survives:
        time.sleep(row.stop_after)
        job.stop()
    else:
        _wait_for_errors(job)
    return again_at


def _end(job: HostsJob, rows: Sequence[Row], said: LogWatch, again_at: float | None) -> list[Seen]:
    """Wait for the end of the job, and return what was seen of each row."""
    row = job.row
    assert job.fault_at is not None
    deadline = max(job.fault_at + row.deadline, time.monotonic() + _END_SECONDS)
    codes = job.wait(deadline)
    if None in codes:
        hang = f"a hang: exit codes {codes} after {row.deadline:g} s"
        return [Seen(codes=codes, stacks=job.stacks(), complaints=[hang]) for _ in rows]
    facts: dict[str, Any] = {"reasons": job.reasons(), "restarts": job.restarts()}
    seen = [Seen(codes=codes, notes=job.failures(), size=job.size, **facts) for _ in rows]
    for each_row, each in zip(rows, seen, strict=True):
        _read_errors(job, each_row, each)
        if row.says:
            each.seconds = None if said.at is None else said.at - job.fault_at
            each.notes.append(said.line)
        each.again_seconds = None if again_at is None else again_at - job.fault_at
    left = [*job.left_behind(), *_descriptors(job)]
    abandoned = job.abandoned()
    for each_row, each in zip(rows, seen, strict=True):
        each.abandoned, each.left = abandoned, [one for one in left if _name(one) not in abandoned]
        if list(complaints_of(each_row, each)):
            each.stacks = job.stacks()
    return seen


def _name(left: str) -> str:
    return left.rpartition(" ")[2]


def _wait_for_faults(job: HostsJob, rows: Sequence[Row]) -> None:
    """Wait until the script has caused the faults of all rows."""
    wanted = {row.script["fault"] for row in rows}

    def caused() -> bool:
        events = [each for rank in range(job.size) for each in job.events(rank)]
        at = {each["fault"]: each["at"] for each in events if each["event"] == "fault"}
        if at:
            job.fault_at = min(at.values())
        return wanted <= at.keys()

    wait_until(caused, _SCRIPT_SECONDS, "the script's faults")


def _wait_until_again(job: HostsJob, fault_at: float) -> float | None:
    """Return when the last rank of a row with `again` summed again; None if too few ranks do."""

    def times() -> list[float]:
        events = [each for rank in range(job.size) for each in job.events(rank)]
        return [each["at"] for each in events if each["event"] == "ready" and each["at"] > fault_at]

    if not job.row.again:
        return None
    try:
        wait_until(lambda: len(times()) >= job.row.again, _AGAIN_SECONDS, "ranks that sum again")
    except StartError:
        return None
    return max(times())


def _wait_for_errors(job: HostsJob) -> None:
    """Wait until all ranks that must have an error do, all hosts have ended, or it is too late."""
    assert job.fault_at is not None
    deadline = job.fault_at + (job.row.expected.within or 0.0) + _ERROR_SECONDS
    wanted = ranks_with_errors(job.row, job.size)

    def is_over() -> bool:
        events = {rank: {each["event"] for each in job.events(rank)} for rank in wanted}
        have_ended = all(each.poll() is not None for each in job.launchers.values())
        return all("error" in each for each in events.values()) or have_ended

    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.05)


def ranks_with_errors(row: Row, size: int) -> set[int]:
    """Return the ranks that must report an error."""
    expected = row.expected
    if row.run is not None or expected.by_launchers or expected.ends_ranks:
        return set()
    if row.says and expected.survives:  # a line in the log, and not the errors, must come in time
        return set()
    return set(range(size)) - set(expected.silent)


def _read_errors(job: HostsJob, row: Row, seen: Seen) -> None:
    """Read when each rank had its error, and the fields of the error."""
    fault, at, began = row.script.get("fault", ""), [], job.fault_at
    for event in job.events(VICTIM):
        if event["event"] == "fault" and event["fault"] == fault:
            began = event["at"]
    assert began is not None
    for rank in range(job.size):
        recorded = job.events(rank)
        events = [each for each in recorded if each["fault"] == fault or not row.together]
        errors = [each for each in events if each["event"] == "error"]
        if errors and rank not in row.expected.silent:
            first = errors[0]
            fields = ("kind", "culprit", "operation", "exception")
            seen.errors.append((rank, *(first[name] for name in fields)))
            seen.notes.append(f"rank {rank}: {first['text']}")
            at.append(first["at"] - began)
        if again := [each["sum"] for each in events if each["event"] == "again"]:
            seen.notes.append(f"rank {rank} went on, sum {again[0]:g}")
    if row.expected.by_launchers:
        at = [when - began for when in job.ended_at.values()]
    seen.seconds = max(at) if at else None


def _descriptors(job: HostsJob) -> Iterator[str]:
    """Yield descriptors that ranks which survived have more at their end than before the fault."""
    for rank in range(job.size):
        counts = {each["event"]: each.get("files") for each in job.events(rank)}
        before, after = counts.get("ready"), counts.get("end")
        if before and after and after > before + _NEW_FILES:
            yield f"{after - before} descriptors of rank {rank}"


def complaints_of(row: Row, seen: Seen) -> Iterator[str]:
    """Yield each way in which a row is not as it should be."""
    if any(code is None for code in seen.codes) or (row.run is None and not seen.codes):
        return
    yield from _of_times(row, seen)
    yield from _of_fields(row, seen)
    yield from _of_codes(row, seen)
    if seen.left:
        yield f"left behind: {', '.join(seen.left)}"


def _of_times(row: Row, seen: Seen) -> Iterator[str]:
    expected = row.expected
    if row.again and seen.again_seconds is None:
        yield f"fewer than {row.again} ranks sum again"
    elif row.again and (seen.again_seconds or 0.0) > ELSE_SECONDS:
        yield f"ranks sum again after {seen.again_seconds:.1f} s, more than {ELSE_SECONDS:g} s"
    if expected.within is None:
        if seen.errors and not expected.kinds:
            yield f"errors of a fault that no rank should see: {seen.errors}"
        return
    wanted = ranks_with_errors(row, seen.size)
    named = {rank for rank, *_ in seen.errors}
    if missing := sorted(wanted - named):
        yield f"no error on ranks {missing}"
    if seen.seconds is None:
        yield "nobody has reported it"
    elif seen.seconds > expected.within:
        yield f"{seen.seconds:.2f} s, more than {expected.within:g} s"


def _of_fields(row: Row, seen: Seen) -> Iterator[str]:
    expected = row.expected
    for rank, kind, culprit, *_ in seen.errors:
        if expected.kinds and kind not in expected.kinds:
            yield f"rank {rank} reports the kind {kind!r}, not one of {expected.kinds}"
        is_free = expected.culprits is None or rank == VICTIM
        if not is_free and culprit not in (expected.culprits or ()):
            yield f"rank {rank} names rank {culprit}, not one of {expected.culprits}"
    if expected.reason and not any(
        all(each.get(name) == value for name, value in expected.reason.items())
        for each in seen.reasons
    ):
        yield f"no failure.json with {dict(expected.reason)}: {seen.reasons}"
    if row.run is None and not _are(expected.restarts, seen.restarts):
        yield f"restarts.json has {seen.restarts}, not {expected.restarts}"


def _are(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether there are as many as wanted, and each has the fields that are wanted."""
    if len(wanted) != len(found):
        return False
    return all(each.items() <= one.items() for each, one in zip(wanted, found, strict=True))


def _of_codes(row: Row, seen: Seen) -> Iterator[str]:
    expected = row.expected
    counted = [code for host, code in enumerate(seen.codes) if host not in expected.lost_hosts]
    if expected.survives and any(counted):
        yield f"the job should go on; exit codes are {seen.codes}"
    if not expected.survives and seen.codes and not any(seen.codes):
        yield "the job ends as if nothing had happened"
    if expected.codes and not set(seen.codes) <= set(expected.codes):
        yield f"exit codes are {seen.codes}, not of {expected.codes}"
