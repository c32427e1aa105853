# SPDX-License-Identifier: Apache-2.0
"""The folder of one local job, through which the driver and the supervisor communicate.

The driver is the process that starts the job. The supervisor is the process that runs the hosts.

job.json     the request and its plan  written once, by the driver; values of environment
             variables are not in it
state.json   the state of the job      written by the supervisor, replaced as a whole
state.reserve   space for the last state, until the job has ended
stop         a request to stop         written by any process, one of these words:
             stop: the ranks get time to save a checkpoint
             kill: all processes are killed at once
             drop: as kill, and the model is discarded
lock         locked while the supervisor runs
secret       the random secret by which the job's ranks recognize each other, removed at the end
logs/        all.log: output of all hosts, in the order of arrival; supervisor.log
data/        copied data of the channels, removed at the end. NAME is the name of a channel:
             NAME for all hosts, NAME/algo-N for one host with ShardedByS3Key
hosts/       one tree like /opt/ml per host, removed at the end
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import get_native_id
from time import time
from typing import Any, Final

from sagemaker_dist.contract.job_secret import new_secret, write_private
from sagemaker_dist.contract.option_variables import USD_PER_HOUR
from sagemaker_dist.contract.redaction import MASK
from sagemaker_dist.planning import LocalChannel, LocalHost, LocalJob
from sagemaker_dist.runners.local.job_state import State
from sagemaker_dist.runners.local.state_reserve import (
    is_reserved,
    read_reserved,
    release,
    reserve,
    write_reserved,
)

_APPEND: Final = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
)
_LOCK_SECONDS: Final = 10.0
_KILLED: Final = "The supervisor of the job was killed."
_UNWRITTEN: Final = (
    "The job has ended, but how is not known: its last state could not be written. The disk of the"
    " job's folder may be full; logs/supervisor.log in it may say more."
)


def _hidden(document: dict[str, Any]) -> dict[str, Any]:
    """Return a request or a plan with "***" as the value of each environment variable.

    The price of the job's hosts stays, because the description of the job shows what it costs.
    """
    return {
        name: {key: each if key == USD_PER_HOUR else MASK for key, each in value.items()}
        if name in {"Environment", "environment"}
        else value
        for name, value in document.items()
    }


def append(log: Path, data: bytes) -> int:
    """Append `data` to the file `log`, and return the number of bytes that could not be written.

    A full disk is no error: training continues even if its output cannot be written. Nothing is
    written through a link.
    """
    left = memoryview(data)
    with contextlib.suppress(OSError), os.fdopen(os.open(log, _APPEND, 0o600), "ab", 0) as file:
        while left:
            left = left[file.write(left) :]
    return len(left)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job: its paths, and the job's state on disk."""

    path: Path

    @property
    def logs(self) -> Path:
        """Directory of the logs: all.log and supervisor.log."""
        return self.path / "logs"

    @property
    def all_log(self) -> Path:
        """File with the output of all hosts, in the order of arrival."""
        return self.logs / "all.log"

    @property
    def hosts(self) -> Path:
        """Directory that contains a directory for each host: the host's /opt/ml."""
        return self.path / "hosts"

    @property
    def data(self) -> Path:
        """Directory of all data that is copied for the hosts."""
        return self.path / "data"

    def channel(self, channel: LocalChannel, host: LocalHost) -> Path:
        """Return the directory with the copied data of a channel, as `host` reads it.

        All hosts share it, except for a channel that is split among them (ShardedByS3Key).
        """
        shared = self.data / channel.name
        return shared / host.label if channel.is_split else shared

    def output(self, job: LocalJob) -> Path:
        """Return the directory to which the job's model and output data are written."""
        return (Path(job.output) / job.name if job.output else self.path) / "output"

    def model(self, job: LocalJob) -> Path:
        """Return the path of the trained model: model.tar.gz, or a directory if uncompressed."""
        return self.output(job) / ("model.tar.gz" if job.compress else "model")

    def checkpoints(self, job: LocalJob) -> Path:
        """Return the directory of checkpoints that all hosts share."""
        return Path(job.checkpoints) if job.checkpoints else self.path / "checkpoints"

    def create(self, request: dict[str, Any], job: LocalJob) -> None:
        """Create the folder, and write the job's request, its plan and its first state.

        Values of the job's environment variables are replaced by "***": they may be secrets, and
        the folder stays after the job.

        Raises:
            FileExistsError: A job of this name exists.
            OSError: The folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(mode=0o700)
        try:
            self.logs.mkdir()
            write_private(self.path / "secret", new_secret())
            self.all_log.touch()
            reserve(self.path)
            self._write("job.json", {"request": _hidden(request), "job": _hidden(job.dump())})
            first = State()
            self.write_state(replace(first, transitions=((first.secondary, first.created),)))
        except BaseException:  # a partial folder would block the job's name
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def request(self) -> dict[str, Any]:
        """Return the job's request, in the fields of CreateTrainingJob.

        Environment variables have the value "***".
        """
        document: dict[str, Any] = self._read("job.json")["request"]
        return document

    def job(self) -> LocalJob:
        """Return the job's plan: hosts, channels, code and output directories.

        Environment variables have the value "***".
        """
        return LocalJob.load(self._read("job.json")["job"])

    def secret(self) -> bytes:
        """Return the secret of the job, which only the job's hosts and this user may know."""
        return (self.path / "secret").read_bytes()

    def remove_secret(self) -> None:
        """Remove the secret of a job that has ended."""
        (self.path / "secret").unlink(missing_ok=True)

    def state(self) -> State:
        """Return the job's state from the disk.

        It is Failed if the supervisor was killed, or could not write the job's last state.
        """
        state = self._state()
        if state.is_terminal or self._is_locked(state):
            return state
        state = self._state()  # the job may have ended since the first read
        if state.is_terminal:
            return state
        if is_reserved(self.path):
            return state.become("Failed", "Failed", _KILLED, {"kind": "killed"})
        return state.become("Failed", "Failed", _UNWRITTEN, {"kind": "not_writable"})

    def adopt(self, state: State) -> bool:
        """Write `state` as the final state of a job whose supervisor was killed; remove its secret.

        Returns whether it was written: False if the state on disk is final already, or if the
        disk is full.
        """
        if State.load(self._read("state.json")).is_terminal:
            return False
        try:
            self.write_state(state)
            self.remove_secret()
        except OSError:
            return False
        return True

    def _state(self) -> State:
        state = State.load(self._read("state.json"))
        if state.is_terminal:
            return state
        reserved = read_reserved(self.path)
        return State.load(reserved) if reserved else state

    def write_state(self, state: State) -> None:
        """Replace state.json in one step, so that a reader never sees half of it.

        A last state is written into reserved space if the disk is full.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        try:
            self._write("state.json", asdict(state))
        except OSError:
            if not state.is_terminal:
                raise
            self._write_reserved(asdict(state))
        else:
            if state.is_terminal:
                release(self.path)

    def _write_reserved(self, document: dict[str, Any]) -> None:
        try:
            write_reserved(self.path, document)
        except OSError:
            release(self.path)  # this frees space, and tells a reader that the job has ended
            self._write("state.json", document)

    def lock(self) -> int:
        """Lock the folder for the supervisor, and return the file descriptor of the lock.

        The supervisor inherits the descriptor. The lock ends when every copy of the descriptor is
        closed.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _is_locked(self, state: State) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:  # the driver has not locked it yet, or was killed before
            return time() - state.created < _LOCK_SECONDS
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def request_stop(self, *, now: bool) -> None:
        """Write a request to stop the job, which the supervisor soon reads.

        Without `now`, the ranks get time to save a checkpoint. The first call with `now` requests
        to kill the hosts. The second call with `now` requests to discard the model, too. A request
        cannot be withdrawn.
        """
        before = self.stop_request()
        if now or not before:
            request = self.path / f"stop.{os.getpid()}"
            harder = "drop" if before in {"kill", "drop"} else "kill"
            request.write_text(harder if now else "stop")
            request.replace(self.path / "stop")

    def stop_request(self) -> str:
        """Return the current request to stop the job, or "" if there is none.

        "stop" gives the ranks time to save a checkpoint. "kill" kills the hosts at once. "drop"
        kills them and discards the model.
        """
        try:
            return (self.path / "stop").read_text()
        except FileNotFoundError:
            return ""

    def _write(self, name: str, document: object) -> None:
        beside = self.path / f"{name}.{get_native_id()}"  # a name for this writer alone
        beside.unlink(missing_ok=True)  # a writer that was killed may have left it
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(beside, flags, 0o600), "w") as file:
            file.write(json.dumps(document, indent=1, default=str))
        beside.replace(self.path / name)

    def _read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / name).read_text())
        return document
