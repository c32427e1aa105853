# SPDX-License-Identifier: Apache-2.0
"""One job on emulated hosts: a real launcher in each network namespace, and its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.fault_row import SILENCE_SECONDS, Row
from benchmarks.harness.hosts import INTERFACE, EmulatedHosts, Host
from sagemaker_dist.contract import KEY, DataParallel, render
from smdist.launch.private_folder import remove_abandoned

ROOT = Path(__file__).parents[2]
PORT = 29_400
_SCRIPT = Path(__file__).with_name("train.py")
_MARK = "FAULTS_MARK"
_START_SECONDS = 300.0
_LOG_LINES = 40
# No start has to measure. A measurement takes longer than what a row measures.
_TUNING = {
    "SMDIST_LANES": "2",
    "SMDIST_CHUNK_BYTES": "262144",
    "SMDIST_ONE_SHOT_BYTES": "65536",
    "SMDIST_SINGLE_OWNER_BYTES": "262144",
    "SMDIST_ARRIVING_BYTES": "229376",
}
_LAUNCHER = (sys.executable, "-m", "smdist.launch")
_MOUNT = ("sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')  # a /dev/shm of each host's own
TORCHS_CACHE = "torchinductor_"
_FAILURE_SECONDS = 3.0  # from a host's failure until the platform stops the others
_STOP_SECONDS = 6.0  # from then until it removes them
_KINDS = {  # part of the command line -> kind of process
    "smdist.launch.rank_guard": "guard",
    "smdist.dataparallel.torchrun": "starter",
    "smdist.launch.task_starter": "starter",
    "smdist.launch": "launcher",
}


class StartError(Exception):
    """The job did not reach the point at which the fault is caused."""


class HostsJob:
    """Job of one rank on each host, between start() and close().

    Everything that it writes is below one folder. Each host has a directory for temporary files of
    its own there, so that what is left behind is seen.
    """

    def __init__(self, emulated: EmulatedHosts, rows: Sequence[Row], framework: str) -> None:
        self.emulated = emulated
        self.row, self._faults = rows[0], [each.script.get("fault", "") for each in rows]
        self.framework = framework
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="flt-"))  # short, for names of Unix sockets
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        self.fault_at: float | None = None
        self.ended_at: dict[int, float] = {}
        self.vanished: set[int] = set()  # hosts whose end nobody is informed of
        self._prepared: Mapping[str, str] = {}

    @property
    def hosts(self) -> list[Host]:
        return self.emulated.hosts

    @property
    def size(self) -> int:
        return len(self.hosts)

    def start(self, numbers: list[int] | None = None, **environ: str) -> None:
        """Start the launchers of these hosts, by default of all."""
        if self.row.prepare is not None and not self._prepared:
            self._prepared = self.row.prepare(self.folder)
        for number in range(self.size) if numbers is None else numbers:
            self._start(self.hosts[number], environ)

    def _start(self, host: Host, environ: Mapping[str, str]) -> None:
        base, temporary = self.base(host.number), self.folder / f"t{host.number}"
        shared_memory = self.folder / f"m{host.number}"
        temporary.mkdir(exist_ok=True)
        shared_memory.mkdir(exist_ok=True)
        self._write_inputs(base, host)
        own = {
            "SAGEMAKER_BASE_DIR": str(base),
            "SMDIST_MASTER_PORT": str(PORT),
            "TMPDIR": str(temporary),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "SMDIST_SILENCE_SECONDS": str(SILENCE_SECONDS),
            _MARK: self.mark,
            **_TUNING,
        }
        is_wrapped = self.row.wrap_host in (None, host.number)
        wrap = self.row.wrap if is_wrapped else ()
        with self._log(host.number).open("ab") as log:
            self.launchers[host.number] = subprocess.Popen(
                [*host.prefix, *_MOUNT, str(shared_memory), *wrap, *_LAUNCHER],
                env={**os.environ, **own, **self._prepared, **self.row.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _write_inputs(self, base: Path, host: Host) -> None:
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        shutil.copy(_SCRIPT, source / "train.py")
        config = base / "input/config"
        config.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": f"file://{source}",
            "framework": self.framework,
            "folder": str(self.folder),
            **self.row.script,
            **({"fault": ",".join(self._faults)} if any(self._faults) else {}),
        }
        options = DataParallel(
            **{"processes_per_host": 1, "start_timeout_seconds": 120, **self.row.options}
        )
        written = {name: json.dumps(value) for name, value in values.items()}
        written[KEY] = json.dumps(render(options, framework=self.framework))
        (config / "hyperparameters.json").write_text(json.dumps(written))
        resources = {
            "current_host": host.address,
            "hosts": [each.address for each in self.hosts],
            "network_interface_name": INTERFACE,
        }
        (config / "resourceconfig.json").write_text(json.dumps(resources))

    def base(self, number: int) -> Path:
        return self.folder / f"h{number}"

    def _log(self, number: int) -> Path:
        return self.folder / f"host-{number}.log"

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has recorded so far."""
        path = self.folder / f"rank-{rank}.jsonl"
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for_event(self, event: str, ranks: list[int] | None = None) -> None:
        """Wait until each of these ranks, by default all, has recorded an event.

        Raises:
            StartError: A launcher has ended before, or it takes too long.
        """
        wanted = range(self.size) if ranks is None else ranks

        def is_there() -> bool:
            return all(any(each["event"] == event for each in self.events(r)) for r in wanted)

        deadline = time.monotonic() + _START_SECONDS
        while not is_there():
            ended = [n for n, each in self.launchers.items() if each.poll() is not None]
            if (ended and not is_there()) or time.monotonic() > deadline:
                raise StartError(f"no {event!r} of all ranks; ended: {ended}\n{self.stacks()}")
            time.sleep(0.05)

    def processes(self, kind: str = "", host: int | None = None) -> list[psutil.Process]:
        """Return the processes of this job that run, of one kind and one host if they are given.

        Kinds are launcher, starter, guard, rank and other.
        """
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = each.environ()
                if environ.get(_MARK) != self.mark or each.status() == psutil.STATUS_ZOMBIE:
                    continue
                base = str(self.base(host)) if host is not None else ""
                is_here = host is None or environ.get("SAGEMAKER_BASE_DIR", base) == base
                if is_here and kind in ("", _kind_of(each)):
                    found.append(each)
        return found

    def signal(self, kind: str, host: int, number: signal.Signals) -> None:
        """Send a signal to the one process of a kind on a host, and note the time of the fault."""
        (process,) = self.processes(kind, host)
        self.note_fault()
        process.send_signal(number)

    def note_fault(self) -> None:
        """Note that the fault is caused now, unless it was before."""
        if self.fault_at is None:
            self.fault_at = time.monotonic()

    def stop(self) -> None:
        """Let all ranks end in order after their next step."""
        (self.folder / "stop").touch()

    def wait(self, deadline: float) -> list[int | None]:
        """Act as SageMaker until all hosts have ended, and return the launchers' exit codes.

        When a host has failed, the others get SIGTERM 3 s later, and are removed 6 s after that.
        None stands for a launcher that runs at the deadline.
        """
        stop_at = remove_at = float("inf")
        while len(self.ended_at) < len(self.launchers) and time.monotonic() < deadline:
            now = time.monotonic()
            for number, each in self.launchers.items():
                if each.poll() is not None and number not in self.ended_at:
                    self.ended_at[number] = now
                    if each.returncode and number not in self.vanished:
                        stop_at = min(stop_at, now + _FAILURE_SECONDS)
            if now > stop_at:
                stop_at, remove_at = float("inf"), now + _STOP_SECONDS
                for each in self.launchers.values():
                    each.terminate()
            if now > remove_at:
                self.kill()
            time.sleep(0.02)
        return [self.launchers[n].poll() for n in sorted(self.launchers)]

    def reasons(self) -> list[dict[str, Any]]:
        """Return the failure.json of each host that has written one."""
        paths = [self.base(number) / "output/failure.json" for number in range(self.size)]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def restarts(self) -> list[dict[str, Any]]:
        """Return the failures of all attempts, as the first host has written them."""
        path = self.base(0) / "output/data/restarts.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def failures(self) -> list[str]:
        """Return the text of each host's output/failure."""
        paths = [self.base(number) / "output/failure" for number in range(self.size)]
        return [path.read_text() for path in paths if path.exists()]

    def stacks(self) -> str:
        """Let ranks print their stacks, and return the last lines of all logs."""
        for each in self.processes("rank"):
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGCONT)
                each.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        return "\n".join(self._tails())

    def _tails(self) -> Iterator[str]:
        for number in range(self.size):
            if self._log(number).exists():
                text = self._log(number).read_text(errors="replace")
                yield f"--- host {number}"
                yield from text.splitlines()[-_LOG_LINES:]

    def logs(self) -> str:
        """Return all that the hosts have printed."""
        paths = [self._log(number) for number in range(self.size)]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def left_behind(self, seconds: float = 8.0) -> list[str]:
        """Return processes, temporary files and shared memory that are left after `seconds`."""
        deadline = time.monotonic() + seconds
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def abandoned(self) -> list[str]:
        """Remove what the next launcher on these hosts would remove; return its names."""
        found = []
        for temporary in sorted(self.folder.glob("t*")):
            before = set(temporary.iterdir())
            remove_abandoned(temporary)
            found += [each.name for each in before - set(temporary.iterdir())]
        return found

    def _left(self) -> list[str]:
        running = [f"process {_kind_of(each)} {each.pid}" for each in self.processes()]
        files = [
            f"file {path.name}"
            for path in sorted(self.folder.glob("t*/*"))
            if not path.name.startswith(TORCHS_CACHE)
        ]
        memory = [f"shared memory {path.name}" for path in sorted(self.folder.glob("m*/*"))]
        return running + files + memory

    def kill(self) -> None:
        """Kill every process of the job."""
        for _ in range(50):
            running = self.processes()
            for each in running:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            if not running:
                break
            time.sleep(0.05)
        for launcher in self.launchers.values():
            launcher.wait(10)

    def close(self) -> None:
        """Kill every process of the job, and remove its files."""
        self.kill()
        for folder in _memory_groups(self.folder.name):
            folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


def memory_group(job: HostsJob) -> Path:
    """Make a group of processes whose memory can be limited, and return its folder."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group = (version_1 if version_1.is_dir() else version_2) / job.folder.name
    group.mkdir()
    return group


def _memory_groups(name: str) -> list[Path]:
    return [each for each in Path("/sys/fs/cgroup").glob(f"**/{name}") if each.is_dir()]


def wait_until(holds: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for a fact.

    Raises:
        StartError: It does not hold after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise StartError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def _kind_of(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "other"
    for part, kind in _KINDS.items():
        if part in words[:4]:
            return kind
    return "rank" if any(word.endswith("train.py") for word in words[:3]) else "other"
