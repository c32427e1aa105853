# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of one host attempt by attempt, as all hosts of the job agree.

join ──▶ start the ranks ──▶ all ended with code 0 ──▶ wait for the other hosts ──▶ status 0
               ▲                  │ a rank failed, here or on another host
               └──────────────────┘ restart; or the job fails
"""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import LaunchError
from smdist.launch.attempt_failure import (
    ATTEMPT_SECONDS,
    CONNECTED_SECONDS,
    MAX_TEXT,
    STARTER,
    AttemptFailure,
    failure_of,
)
from smdist.launch.failure_file import shorten
from smdist.launch.failure_policy import EndJob
from smdist.launch.job_attempts import RestartRules
from smdist.launch.launcher_link import LauncherLink, join, pair
from smdist.launch.outcome import Outcome
from smdist.launch.process_control import LAUNCHER_SIGNALS, signal_socket
from smdist.launch.rank_ends import RankEnds
from smdist.launch.restart_coordinator import RestartCoordinator
from smdist.launch.restart_policy import Finish, GiveUp, RestartPolicy, Start
from smdist.launch.result_file import write_result
from smdist.launch.supervise import Order, Supervisor

PrintLine = Callable[[str], None]
HISTORY: Final = "restarts.json"  # in output/data of the first host
_MAX_FILES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """Everything that one host needs to run its ranks several times.

    Attributes:
        rules: Rules of the job's restarts.
        host: Name of this host in messages.
        order: Function that returns the command of an attempt, from its number and an empty
            directory.
        directory: An empty directory for the files of all attempts.
        base: SageMaker's directory, by default /opt/ml.
        checkpoints: Directory of the checkpoints; a change in it is progress.
        address: IP address and port of the coordinator on the first host.
        listening_address: IP address at which the coordinator listens; "" for all addresses.
        secret: Secret of the job; empty if it has none.
    """

    rules: RestartRules
    host: str
    order: Callable[[int, Path], Order]
    directory: Path
    base: Path
    checkpoints: Path
    address: tuple[str, int]
    listening_address: str
    secret: bytes

    @property
    def is_first(self) -> bool:
        """Return True on the host that coordinates."""
        return self.host == self.rules.hosts[0]


def run_once(order: Order, print_line: PrintLine, ends: RankEnds | None = None) -> Outcome:
    """Run the ranks of this host once; a failure ends the job.

    `ends` are exit statuses of ranks, which the launchers tell each other.
    """
    with signal_socket(*LAUNCHER_SIGNALS) as signals:
        return Supervisor(order, print_line, EndJob(ends), signals).run()


def run_attempts(plan: AttemptPlan, print_line: PrintLine) -> Outcome:
    """Run the ranks of this host until the job succeeds, fails for good, or is stopped.

    Raises:
        LaunchError: The ranks cannot be started, or the coordinator's port is in use.
    """
    with signal_socket(*LAUNCHER_SIGNALS) as signals, _policy(plan, signals, print_line) as policy:
        decision, outcome = policy.join(), Outcome(status=0)
        while isinstance(decision, Start):
            directory = _prepare(plan, decision)
            before, began = _files(plan.checkpoints), time.time()
            order = plan.order(decision.attempt, directory)
            outcome = Supervisor(order, print_line, policy, signals).run()
            if policy.is_stopping:
                return outcome
            if not outcome.status and not outcome.was_ended:
                decision = policy.after_success()
            else:
                progress = before != _files(plan.checkpoints) or _is_long(outcome, began)
                failure = _failure(outcome, plan.host, decision.attempt)
                decision = policy.after_failure(failure, progress=progress)
        return _last_outcome(plan, decision, outcome)


@contextmanager
def _policy(
    plan: AttemptPlan, signals: socket.socket, print_line: PrintLine
) -> Iterator[RestartPolicy]:
    """Yield this host's part in the agreement; the first host runs the coordinator meanwhile."""
    connect, coordinator = _connector(plan), None
    if plan.is_first:
        own, theirs = pair(plan.secret, plan.host)
        listener = _listener(plan) if len(plan.rules.hosts) > 1 else None
        coordinator = RestartCoordinator(plan.rules, plan.secret, theirs, listener, print_line)

        def connect(_: float) -> LauncherLink:
            return own

    policy = RestartPolicy(plan.rules, plan.host, connect, signals, print_line)
    try:
        yield policy
    finally:
        policy.close()
        if coordinator is not None:
            coordinator.close()


def _connector(plan: AttemptPlan) -> Callable[[float], LauncherLink]:
    return lambda seconds: join(plan.address, plan.host, plan.secret, seconds)


def _listener(plan: AttemptPlan) -> socket.socket:
    port = plan.address[1]
    try:
        both = not plan.listening_address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        place = (plan.listening_address, port)
        return socket.create_server(place, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise LaunchError(
            f"the coordinator of restarts cannot use port {port} of {plan.host}",
            error.strerror or str(error),
            "Set the environment variable SMDIST_MASTER_PORT to another port, with the same value"
            " on all hosts of the job, or leave max_restarts out",
            about="max_restarts",
            kind="conflict",
        ) from error


def _prepare(plan: AttemptPlan, decision: Start) -> Path:
    """Return an empty directory for an attempt, and remove the failure of the one before."""
    if plan.is_first and decision.history:
        _write_history(plan, decision.history)
    if decision.attempt == 0:
        return plan.directory
    for name in ("failure", "failure.json"):
        with suppress(OSError):  # the script has made a directory of this name
            (plan.base / "output" / name).unlink(missing_ok=True)
    directory = plan.directory / f"attempt-{decision.attempt}"
    directory.mkdir(mode=0o700)
    return directory


def _write_history(plan: AttemptPlan, history: tuple[Mapping[str, Any], ...]) -> None:
    path = plan.base / "output" / "data" / HISTORY
    with suppress(OSError):  # a full disk must not end a job that trains
        write_result(path, json.dumps(list(history), indent=1))


def _failure(outcome: Outcome, host: str, attempt: int) -> AttemptFailure | None:
    """Return the failure of this host's ranks; None if they were ended because of another host."""
    if outcome.culprit is not None:
        return failure_of(outcome.culprit, host, attempt)
    if not outcome.failure:
        return None
    return AttemptFailure(
        attempt=attempt,
        host=host,
        kind=STARTER,
        exit_code=outcome.status,
        text=outcome.failure[:MAX_TEXT],
        at_seconds=time.time(),
    )


def _is_long(outcome: Outcome, began: float) -> bool:
    now = time.time()
    trained = outcome.connected_at is not None and now - outcome.connected_at >= CONNECTED_SECONDS
    return trained or now - began >= ATTEMPT_SECONDS


def _files(directory: Path) -> frozenset[tuple[str, int, int]]:
    """Return name, size and time of change of each file below `directory`, of 10,000 at most."""
    found: set[tuple[str, int, int]] = set()
    with suppress(OSError):
        for path in directory.rglob("*"):
            if len(found) >= _MAX_FILES:
                break
            with suppress(OSError):  # removed meanwhile
                facts = path.stat()
                found.add((str(path), facts.st_size, facts.st_mtime_ns))
    return frozenset(found)


def _last_outcome(plan: AttemptPlan, decision: Finish | GiveUp, outcome: Outcome) -> Outcome:
    """Return the result of this host, from the last decision and the result of its last attempt."""
    if isinstance(decision, Finish):
        done = not outcome.status and not outcome.was_ended
        number = decision.signal or (0 if done else signal.SIGTERM)
        return Outcome(status=128 + number, signal=number) if number else outcome
    if plan.is_first and decision.history:
        _write_history(plan, decision.history)
    restarts = {"restarts": list(decision.history), "not_restarted": decision.kind}
    if outcome.failure and not outcome.was_ended:
        text = shorten(outcome.failure, f"; {decision.text}")
        return replace(outcome, failure=text, fields={**outcome.fields, **restarts})
    cause = decision.culprit or {}
    text = f"{cause['text']}; {decision.text}" if cause else decision.text
    fields = {name: cause.get(name) for name in ("host", "rank", "exit_code", "kind", "frame")}
    other = {**fields, "culprit": cause.get("rank"), "is_secondary": bool(cause), **restarts}
    return Outcome(status=outcome.status or 1, failure=shorten(text), fields=other)
