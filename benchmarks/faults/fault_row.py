# SPDX-License-Identifier: Apache-2.0
"""One row of the table of faults: what happens, what must follow, and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Time between the cause and the last rank's error, in seconds.
CRASH_SECONDS = 0.5  # a process that ended, while its host lives
AT_ONCE_SECONDS = 0.5  # ranks that disagree
SILENCE_SECONDS = 10  # silence of a peer's kernel that counts as its loss, in all rows
NETWORK_SECONDS = SILENCE_SECONDS + 1.0
ELSE_SECONDS = 30.0  # everything else

BOTH = ("torch", "tensorflow")
TORCH = ("torch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Result that a row must have.

    Attributes:
        within: Seconds from the cause until the last rank has its error; None if the fault is
            none that a rank can see.
        kinds: Kinds of the fault that ranks may report.
        culprits: Ranks that ranks other than the victim, rank 2, may name; None: any, also none.
        silent: Ranks that report no error, because the fault ends or stops them.
        survives: Whether the job goes on to its end, with exit code 0 on every host.
        by_launchers: Whether launchers, not ranks, report the fault, because no rank runs yet, or
            none is left that could.
        ends_ranks: Whether launchers end the other ranks at once, for a restart. A rank may then
            end before it has raised its error; one that does raise must name the culprit.
        codes: Exit codes that launchers may have; (): any that is not 0.
        reason: Fields of failure.json that one host must have.
        restarts: Fields of each failure in restarts.json of the first host; (): there is none.
        lost: What a user loses.
        lost_hosts: Hosts whose exit codes do not count, because the job goes on without them.
    """

    within: float | None
    kinds: tuple[str, ...] = ()
    culprits: tuple[int, ...] | None = None
    silent: tuple[int, ...] = ()
    survives: bool = False
    by_launchers: bool = False
    ends_ranks: bool = False
    codes: tuple[int, ...] = ()
    reason: Mapping[str, Any] = field(default_factory=dict)
    restarts: tuple[Mapping[str, Any], ...] = ()
    lost: str = "the job ends; steps since the last checkpoint"
    lost_hosts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Fault of a job on four hosts, or of something else that `run` does.

    Attributes:
        name: Name in the table, and for ROWS=.
        action: Function that causes the fault from outside of the ranks; None: the script does.
        script: Options of the ranks' script, benchmarks/faults/train.py.
        options: Options of DataParallel.
        environ: Environment variables of all launchers.
        prepare: Function that makes what the job needs in its folder, and returns more variables.
        begin: Function that starts the launchers; None: all at once.
        wrap: Command that starts each launcher, such as one that limits its open files.
        wrap_host: Number of the only host with `wrap`; None: all.
        together: Name of a job that several rows share; their script's faults follow each other.
        expected: Result that the row must have.
        test: Test that shows the same with fewer processes, as "path::name"; native tests as
            "path::name" of their C++ file.
        frameworks: Frameworks with which the row runs.
        until: Event of all ranks after which the fault is caused; "": at once.
        stop_after: Seconds after the fault when a job that survives is asked to end.
        deadline: Seconds after the fault when a job that still runs is a hang.
        run: Function that does the whole row without a job on hosts, and returns what was seen.
        says: Regular expression of a line that names the culprit in the job's log; its time is
            the time of the row, instead of that of the errors. "": none.
        again: Number of ranks that must sum again after the fault, in new processes or in a smaller
            world; 0: none.
    """

    name: str
    expected: Expected
    test: str
    action: Callable[..., None] | None = None
    script: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], Mapping[str, str]] | None = None
    begin: Callable[..., None] | None = None
    wrap: tuple[str, ...] = ()
    wrap_host: int | None = None
    together: str = ""
    frameworks: tuple[str, ...] = TORCH
    until: str = "ready"
    stop_after: float = 3.0
    deadline: float = 60.0
    run: Callable[..., Seen] | None = None
    says: str = ""
    again: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether no other row may run meanwhile: its time limit is short, or includes imports."""
        limit = self.expected.within
        is_short = limit is not None and limit <= NETWORK_SECONDS
        return is_short or self.again > 0 or self.run is not None


@dataclass(slots=True)
class Seen:
    """Outcome of one row: what ranks reported, and what was left behind.

    Attributes:
        seconds: Seconds from the cause until the last rank had its error; None without errors.
        errors: (rank, kind, culprit, operation, exception) of each rank's first error.
        codes: Exit code of each host's launcher.
        reasons: failure.json of each host that has one.
        left: Processes, files and descriptors that are left behind.
        abandoned: Folders of killed launchers, which the next launcher removes.
        restarts: Failures in restarts.json of the first host.
        notes: Other facts, for people.
        complaints: Ways in which this is not what the row expects.
        stacks: Logs and stacks, if something is wrong.
        load: Load average of the machine after the row.
        has_started: Whether the job reached the point at which the fault is caused.
        size: Number of ranks.
        again_seconds: Seconds from the cause until all ranks that are left sum again; None if they
            do not.
    """

    seconds: float | None = None
    errors: list[tuple[Any, ...]] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    stacks: str = ""
    load: float = 0.0
    has_started: bool = True
    size: int = 0
    again_seconds: float | None = None
