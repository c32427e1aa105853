# SPDX-License-Identifier: Apache-2.0
"""Rows of a local job: two hosts as processes, whose supervisor something happens to."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.fault_row import ELSE_SECONDS, Seen
from benchmarks.faults.hosts_job import TORCHS_CACHE, StartError, wait_until
from benchmarks.faults.log_watch import LogWatch

_SCRIPT = Path(__file__).with_name("train.py")
_MARK = "FAULTS_MARK"
_STOPPED_SECONDS = 15.0
_STOP_LINE = "the supervisor of this job has been stopped"
_START_SECONDS = 300.0
_END_SECONDS = 60.0
_LOG_LINES = 40
_FINAL = {"Completed", "Failed", "Stopped"}


def supervisor_signalled(what: str, status: str, framework: str) -> Seen:
    """Send a signal to a job's supervisor, or fill its disk; the job must end with `status`."""
    return _in_a_job(framework, lambda job: job.play(what, status))


def _in_a_job(framework: str, play: Callable[[_LocalJob], Seen]) -> Seen:
    mark, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="flt-"))
    try:
        job = _LocalJob(folder, mark, framework)
        try:
            return play(job)
        except StartError as error:
            last = [str(error), *job.log().splitlines()[-_LOG_LINES:]]
            missing = f"{error}" if job.has_started else "the job did not start"
            stacks = "\n".join(last)
            return Seen(complaints=[missing], stacks=stacks, has_started=job.has_started)
    finally:
        _clean(folder, mark)


def _clean(folder: Path, mark: str) -> None:
    while running := _processes(mark):
        for each in running:
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(0.05)
    subprocess.run(["umount", "-q", "--lazy", folder / "jobs"], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def host_replaced(host: str, whole: bool, framework: str) -> Seen:
    """Kill a host of a job with max_restarts, and wait until both hosts sum again.

    Args:
        host: Name of the host.
        whole: Whether all its processes are killed at once, or its launcher alone.
        framework: "torch" or "tensorflow".
    """
    return _in_a_job(framework, lambda job: job.play_replaced(host, whole))


class _LocalJob:
    """Job of two hosts with a rank each, on loopback addresses."""

    def __init__(self, folder: Path, mark: str, framework: str) -> None:
        from sagemaker_dist.runners import LocalRunner

        self.folder, self.mark = folder, mark
        (folder / "jobs").mkdir()
        (folder / "source").mkdir()
        (folder / "tmp").mkdir()
        shutil.copy(_SCRIPT, folder / "source/train.py")
        disk = ["-t", "tmpfs", "-o", "size=2m", "none", str(folder / "jobs")]
        subprocess.run(["mount", *disk], check=True)
        os.environ[_MARK] = mark  # which the supervisor and all hosts inherit
        self.runner = LocalRunner(root=folder / "jobs")
        self.framework = framework
        self.has_started = False

    def play(self, what: str, status: str) -> Seen:
        self._start()
        at = time.monotonic()
        says = _STOP_LINE if what == "SIGSTOP" else ""
        with LogWatch(self.log, says) as said:
            self._cause(what)
            said.wait(at + ELSE_SECONDS)
        if status == "Completed":
            time.sleep(2)
            (self.folder / "stop").touch()
        wait_until(lambda: self._status() in _FINAL, _END_SECONDS, f"the end after {what}")
        seconds: float | None = time.monotonic() - at
        if says:
            seconds = None if said.at is None else said.at - at
        return self._seen(status, seconds)

    def play_replaced(self, host: str, whole: bool) -> Seen:
        self._start(max_restarts=2)
        victims = [each for each in _processes(self.mark) if _is_on(each, host)]
        killed = victims if whole else [each for each in victims if _is_launcher(each)]
        at = time.monotonic()
        with LogWatch(
            self.log, rf"launcher of {host} was killed by SIGKILL.* started again"
        ) as said:
            for each in killed:
                with contextlib.suppress(psutil.Error):  # its parent has ended
                    each.kill()
            said.wait(at + ELSE_SECONDS)
        wait_until(lambda: self._count("ready") == 4, _START_SECONDS, "two ranks that train again")
        again_seconds = time.monotonic() - at
        (self.folder / "stop").touch()
        wait_until(lambda: self._status() in _FINAL, _END_SECONDS, "the end after a restart")
        seen = self._seen("Completed", None if said.at is None else said.at - at)
        seen.again_seconds = again_seconds
        seen.restarts = list(self.runner.describe("job").get("Restarts", []))
        named = [(each.get("kind"), each.get("host")) for each in seen.restarts]
        if named != [("host", host)]:
            seen.complaints.append(f"the job's restarts are {seen.restarts}, not one of {host}")
        return seen

    def _start(self, max_restarts: int = 0) -> None:
        self._submit(max_restarts)
        wait_until(lambda: self._count("ready") == 2, _START_SECONDS, "two ranks that train")
        self.has_started = True

    def _seen(self, status: str, seconds: float | None) -> Seen:
        end = time.monotonic() + 8
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.1)
        found = self._status()
        wrong = [] if found == status else [f"the job is {found}, not {status}"]
        return Seen(seconds=seconds, left=left, notes=[f"status {found}"], complaints=wrong)

    def log(self) -> str:
        """Return what all hosts have printed."""
        path = Path(self.runner.logs_at("job"), "all.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _submit(self, max_restarts: int) -> None:
        """Submit from a process of its own: a driver that was started with the mark."""
        arguments = [str(self.folder), self.framework, str(max_restarts)]
        command = [sys.executable, "-m", __name__, *arguments]
        environ = {**os.environ, "TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=180, check=False
        )
        if done.returncode:
            raise StartError(done.stderr)

    def _cause(self, what: str) -> None:
        if what == "full disk":
            with contextlib.suppress(OSError), (self.folder / "jobs/filler").open("wb") as filler:
                while True:
                    filler.write(b"x" * 4096)
                    filler.flush()
            return
        supervisor = next(
            each for each in _processes(self.mark) if "supervisor" in " ".join(each.cmdline())
        )
        supervisor.send_signal(signal.Signals[what])
        if what == "SIGSTOP":
            time.sleep(_STOPPED_SECONDS)
            supervisor.send_signal(signal.SIGCONT)

    def _count(self, event: str) -> int:
        files = self.folder.glob("rank-*.jsonl")
        return sum(file.read_text().count(f'"event": "{event}"') for file in files)

    def _status(self) -> Any:
        return self.runner.describe("job")["TrainingJobStatus"]

    def _left(self) -> list[str]:
        running = [f"process {each.pid}" for each in _processes(self.mark)]
        files = [each.name for each in (self.folder / "tmp").glob("*")]
        return running + [f"file {each}" for each in files if not each.startswith(TORCHS_CACHE)]


def _is_on(process: psutil.Process, host: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return Path(process.environ().get("SAGEMAKER_BASE_DIR", "")).name == host
    return False


def _is_launcher(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[1:3] == ["-m", "smdist.launch"]
    return False


def _processes(mark: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = each.environ().get(_MARK) == mark and each.pid != os.getpid()
            if is_marked and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def submit(folder: Path, framework: str, max_restarts: int) -> None:
    """Start the job, which outlives this process."""
    from sagemaker_dist import DataParallel
    from sagemaker_dist.jobs import TrainingJob
    from sagemaker_dist.runners import LocalRunner

    job = TrainingJob(
        entry_point="train.py",
        source_dir=str(folder / "source"),
        instance_type="local_process",
        instance_count=2,
        framework=framework,
        distribution=DataParallel(processes_per_host=1, max_restarts=max_restarts),
        hyperparameters={"framework": framework, "folder": str(folder)},
        output_path=(folder / "output").as_uri(),
        job_name="job",
        runner=LocalRunner(root=folder / "jobs"),
    )
    job.submit()


if __name__ == "__main__":
    submit(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
