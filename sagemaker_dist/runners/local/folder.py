# SPDX-License-Identifier: Apache-2.0
"""The folder of one job: the only thing that driver and supervisor share.

job.json     what was asked            written once, by the driver
state.json   what has become of it     written by the supervisor, replaced whole
stop         a wish to stop            written by any driver: "stop", "kill", "drop"
lock         held while the supervisor lives
logs/        algo-N.log per host, all.log of every host in the order of arrival
data/        what was brought for the hosts, removed at the end
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
    """What has become of a job; times in seconds since 1970.

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
        """Whether nothing more will happen."""
        return self.status in TERMINAL

    def become(self, status: str, secondary: str, reason: str | None = None) -> State:
        """The state that follows this one, now."""
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
    """Write to a log; one that cannot be written, as on a full disk, ends no training."""
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(data)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job, and its state on disk."""

    path: Path

    @property
    def logs(self) -> Path:
        """One file per host, and all.log."""
        return self.path / "logs"

    @property
    def all_log(self) -> Path:
        """The output of every host, in the order of arrival."""
        return self.logs / "all.log"

    @property
    def hosts(self) -> Path:
        """The trees of the hosts."""
        return self.path / "hosts"

    def output(self, job: LocalJob) -> Path:
        """Where the model goes."""
        return (Path(job.output) / job.name if job.output else self.path) / "output"

    def model(self, job: LocalJob) -> Path:
        """The model itself."""
        return self.output(job) / ("model.tar.gz" if job.compress else "model")

    def checkpoints(self, job: LocalJob) -> Path:
        """The checkpoints that all hosts share."""
        return Path(job.checkpoints) if job.checkpoints else self.path / "checkpoints"

    def create(self, request: dict[str, Any], job: LocalJob) -> None:
        """Write down what was asked.

        Raises:
            FileExistsError: There is a job of this name.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(mode=0o700)
        try:
            self.logs.mkdir()
            self.all_log.touch()
            self._write("job.json", {"request": request, "job": job.dump()})
            first = State()
            self.write_state(replace(first, transitions=((first.secondary, first.created),)))
        except BaseException:  # half a job would be in the way of the next of its name
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def request(self) -> dict[str, Any]:
        """The request as it came."""
        document: dict[str, Any] = self._read("job.json")["request"]
        return document

    def job(self) -> LocalJob:
        """The job as it was planned."""
        return LocalJob.load(self._read("job.json")["job"])

    def state(self) -> State:
        """What has become of the job; a supervisor that is gone has failed it."""
        state = self._state()
        if state.is_terminal or self._is_locked(state):
            return state
        state = self._state()  # it may have ended between the two looks
        if state.is_terminal:
            return state
        return state.become("Failed", "Failed", "The supervisor of the job was killed.")

    def adopt(self, state: State) -> bool:
        """Write down the end of a job whose supervisor could not; False where it had."""
        if self._state().is_terminal:
            return False
        self.write_state(state)
        return True

    def _state(self) -> State:
        document = self._read("state.json")
        document["transitions"] = tuple(tuple(step) for step in document["transitions"])
        return State(**document)

    def write_state(self, state: State) -> None:
        """Replace the state whole: a reader never sees half of it."""
        self._write("state.json", asdict(state))

    def lock(self) -> int:
        """A descriptor that holds the lock until every copy of it is closed."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _is_locked(self, state: State) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:  # the driver is about to take it, or died before it could
            return time() - state.created < _LOCK_SECONDS
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ask_to_stop(self, *, now: bool) -> None:
        """Leave a wish that the supervisor reads within a moment; none is ever taken back.

        The first with `now` kills the hosts, the second gives up their model, too.
        """
        before = self.wish()
        if now or not before:
            wish = self.path / f"stop.{os.getpid()}"
            harder = "drop" if before in {"kill", "drop"} else "kill"
            wish.write_text(harder if now else "stop")
            wish.replace(self.path / "stop")

    def wish(self) -> str:
        """ "stop", "kill", "drop", or nothing."""
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
