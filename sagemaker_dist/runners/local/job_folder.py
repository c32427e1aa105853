# SPDX-License-Identifier: Apache-2.0
"""The folder of one job: the only connection between driver and supervisor.

job.json     the request and its plan  written once, by the driver
state.json   the state of the job      written by the supervisor, replaced whole
stop         a request to stop         written by any driver: "stop", "kill", "drop"
lock         held while the supervisor lives
logs/        algo-N.log per host, all.log of every host in the order of arrival
data/        data copied for the hosts, removed at the end
hosts/       one tree like /opt/ml per host, removed at the end
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any, Final

from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.protocol import TERMINAL

_LOCK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of a job; times in seconds since 1970.

    Attributes:
        status: TrainingJobStatus of DescribeTrainingJob.
        secondary: SecondaryStatus.
        reason: FailureReason, or None.
        transitions: Every secondary status with the time at which it began.
    """

    status: str = "InProgress"
    secondary: str = "Starting"
    created: float = field(default_factory=time)
    started: float | None = None
    ended: float | None = None
    modified: float = field(default_factory=time)
    reason: str | None = None
    transitions: tuple[tuple[str, float], ...] = ()

    @property
    def is_terminal(self) -> bool:
        """Return whether the job has ended."""
        return self.status in TERMINAL

    def become(self, status: str, secondary: str, reason: str | None = None) -> State:
        """Return the next state, from now on."""
        now = time()
        return replace(
            self,
            status=status,
            secondary=secondary,
            reason=reason or self.reason,
            started=self.started or (now if secondary == "Training" else None),
            ended=now if status in TERMINAL else None,
            modified=now,
            transitions=(*self.transitions, (secondary, now)),
        )


def append(log: Path, data: bytes) -> None:
    """Append to a log; errors such as a full disk are ignored, so that they end no training."""
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(data)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job, and its state on disk."""

    path: Path

    @property
    def logs(self) -> Path:
        """Directory with one file per host, and all.log."""
        return self.path / "logs"

    @property
    def all_log(self) -> Path:
        """Output of every host, in the order of arrival."""
        return self.logs / "all.log"

    @property
    def hosts(self) -> Path:
        """Directory with the trees of the hosts."""
        return self.path / "hosts"

    def output(self, job: LocalJob) -> Path:
        """Return the directory of the model."""
        return (Path(job.output) / job.name if job.output else self.path) / "output"

    def model(self, job: LocalJob) -> Path:
        """Return the path of the model."""
        return self.output(job) / ("model.tar.gz" if job.compress else "model")

    def checkpoints(self, job: LocalJob) -> Path:
        """Return the directory of checkpoints that all hosts share."""
        return Path(job.checkpoints) if job.checkpoints else self.path / "checkpoints"

    def create(self, request: dict[str, Any], job: LocalJob) -> None:
        """Write the request and its plan.

        Raises:
            FileExistsError: A job of this name exists.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(mode=0o700)
        try:
            self.logs.mkdir()
            self.all_log.touch()
            self._write("job.json", {"request": request, "job": job.dump()})
            first = State()
            self.write_state(replace(first, transitions=((first.secondary, first.created),)))
        except BaseException:  # a partial folder would block the job's name
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def request(self) -> dict[str, Any]:
        """Return the request."""
        document: dict[str, Any] = self._read("job.json")["request"]
        return document

    def job(self) -> LocalJob:
        """Return the plan of the job."""
        return LocalJob.load(self._read("job.json")["job"])

    def state(self) -> State:
        """Return the job's state; without a living supervisor an unfinished job has failed."""
        state = self._state()
        if state.is_terminal or self._is_locked(state):
            return state
        state = self._state()  # it may have ended since the first read
        if state.is_terminal:
            return state
        return state.become("Failed", "Failed", "The supervisor of the job was killed.")

    def adopt(self, state: State) -> bool:
        """Write the final state of a job whose supervisor was killed; return False if it is already
        written.
        """
        if self._state().is_terminal:
            return False
        self.write_state(state)
        return True

    def _state(self) -> State:
        document = self._read("state.json")
        document["transitions"] = tuple(tuple(step) for step in document["transitions"])
        return State(**document)

    def write_state(self, state: State) -> None:
        """Replace the state as a whole, so that a reader never sees a part."""
        self._write("state.json", asdict(state))

    def lock(self) -> int:
        """Return a descriptor that holds the lock until every copy of it is closed."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _is_locked(self, state: State) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:  # the driver has not taken it yet, or died before
            return time() - state.created < _LOCK_SECONDS
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def request_stop(self, *, now: bool) -> None:
        """Write a request to stop, which the supervisor soon reads; it cannot be taken back.

        The first call with `now` kills the hosts, the second discards their model too.
        """
        before = self.stop_request()
        if now or not before:
            request = self.path / f"stop.{os.getpid()}"
            harder = "drop" if before in {"kill", "drop"} else "kill"
            request.write_text(harder if now else "stop")
            request.replace(self.path / "stop")

    def stop_request(self) -> str:
        """Return the request to stop: "stop", "kill", "drop", or ""."""
        try:
            return (self.path / "stop").read_text()
        except FileNotFoundError:
            return ""

    def _write(self, name: str, document: object) -> None:
        beside = self.path / f"{name}.new"
        beside.write_text(json.dumps(document, indent=1, default=str))
        beside.replace(self.path / name)

    def _read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / name).read_text())
        return document
