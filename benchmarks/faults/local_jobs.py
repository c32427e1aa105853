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
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.fault_row import Seen
from benchmarks.faults.hosts_job import StartError, wait_until

_SCRIPT = Path(__file__).with_name("train.py")
_MARK = "FAULTS_MARK"
_STOPPED_SECONDS = 10.0
_END_SECONDS = 60.0
_FINAL = {"Completed", "Failed", "Stopped"}


def supervisor_signalled(what: str, status: str, framework: str) -> Seen:
    """Send a signal to a job's supervisor, or fill its disk; the job must end with `status`."""
    mark, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="flt-"))
    try:
        return _LocalJob(folder, mark, framework).play(what, status)
    except StartError as error:
        return Seen(complaints=["the job did not start"], stacks=str(error))
    finally:
        for each in _processes(mark):
            with contextlib.suppress(psutil.Error):
                each.kill()
        subprocess.run(["umount", "-q", folder / "jobs"], check=False)
        shutil.rmtree(folder, ignore_errors=True)


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

    def play(self, what: str, status: str) -> Seen:
        self._submit()
        wait_until(lambda: self._count("ready") == 2, 120, "two ranks that train")
        at = time.monotonic()
        self._cause(what)
        if status == "Completed":
            time.sleep(2)
            (self.folder / "stop").touch()
        wait_until(lambda: self._status() in _FINAL, _END_SECONDS, f"the end after {what}")
        seconds = time.monotonic() - at
        end = time.monotonic() + 8
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.1)
        found = self._status()
        wrong = [] if found == status else [f"the job is {found}, not {status}"]
        return Seen(seconds=seconds, left=left, notes=[f"status {found}"], complaints=wrong)

    def _submit(self) -> None:
        """Submit from a process of its own: a driver that was started with the mark."""
        command = [sys.executable, "-m", __name__, str(self.folder), self.framework]
        environ = {**os.environ, "TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=60, check=False
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
        return sum(f'"event": "{event}"' in file.read_text() for file in files)

    def _status(self) -> Any:
        return self.runner.describe("job")["TrainingJobStatus"]

    def _left(self) -> list[str]:
        running = [f"process {each.pid}" for each in _processes(self.mark)]
        return running + [f"file {each.name}" for each in (self.folder / "tmp").glob("*")]


def _processes(mark: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = each.environ().get(_MARK) == mark and each.pid != os.getpid()
            if is_marked and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def submit(folder: Path, framework: str) -> None:
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
        distribution=DataParallel(processes_per_host=1),
        hyperparameters={"framework": framework, "folder": str(folder)},
        output_path=(folder / "output").as_uri(),
        job_name="job",
        runner=LocalRunner(root=folder / "jobs"),
    )
    job.submit()


if __name__ == "__main__":
    submit(Path(sys.argv[1]), sys.argv[2])
