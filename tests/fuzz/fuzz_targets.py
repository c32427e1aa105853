# SPDX-License-Identifier: Apache-2.0
"""List of all fuzz targets, and one run of libFuzzer on one of them.

The targets in C++ are in the program that `make fuzz` builds, those in Python in readers.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "fuzz"
PROGRAM = WORK / "native" / "fuzz" / "smdist_fuzz"
# Targets of one parser run ten times as often as those that hold a conversation.
PARSERS = ("frame", "descriptor", "fault", "references", "rtr_message", "hello")
_GRACE_SECONDS = 3600  # for the start, and for a machine that is busy with other work
# A small quarantine stays in the processor's cache, so a long input may outrun it. Allocations have
# no stacks, since a finding can be run again with them.
_SANITIZERS = "malloc_context_size=0:quarantine_size_mb=4:handle_abort=1"
# Entropic scheduling costs more time than these targets take.
_OPTIONS = ("-entropic=0", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1")
_INTERRUPTED = 72  # exit code of libFuzzer after Ctrl-C
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_EDGES = re.compile(r"\bcov: (\d+)")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What libFuzzer reported of one run."""

    executions: int
    edges: int
    failed: bool
    output: str


@dataclass(frozen=True, kw_only=True)
class FuzzedTarget:
    name: str
    is_python: bool

    @property
    def is_parser(self) -> bool:
        return self.is_python or self.name in PARSERS

    @property
    def corpus(self) -> Path:
        """The corpus in the repository."""
        folder = HERE if self.is_python else ROOT / "tests" / "native" / "fuzz"
        return folder / "corpus" / f"{self.name}.hex"

    @property
    def inputs(self) -> Path:
        """The folder in which libFuzzer keeps what it finds."""
        return WORK / "corpus" / self.name

    @property
    def max_bytes(self) -> int:
        return 300 if self.name.startswith("progress_engine") else 1024

    def fuzz(self, options: Sequence[str], *folders: Path, seconds: float) -> Run:
        """Run libFuzzer with these options; it is ended if it goes on for too long."""
        command = [sys.executable, str(HERE / "reader_process.py"), self.name]
        if not self.is_python:
            command = [str(PROGRAM)]
        common = (
            *_OPTIONS,
            f"-max_len={self.max_bytes}",
            f"-artifact_prefix={self._findings()}",
        )
        return self._run([*command, *map(str, folders), *common, *options], seconds)

    def mutate(self, executions: int, seed: int, *, seconds: float) -> Run:
        """Run a target in Python on mutations of what libFuzzer has found, without coverage."""
        limits = (str(executions), str(seconds), str(seed))
        command = [sys.executable, str(HERE / "mutation.py"), self.name, str(self.inputs)]
        return self._run([*command, *limits, self._findings()], seconds)

    def _findings(self) -> str:
        """Return the beginning of the path of each input that fails."""
        findings = WORK / "findings"
        findings.mkdir(parents=True, exist_ok=True)
        return f"{findings}/{self.name}-"

    def _run(self, command: Sequence[str], seconds: float) -> Run:
        with tempfile.TemporaryDirectory(prefix="smdist-fuzz-", dir=_memory()) as files:
            process = subprocess.run(
                command,
                env={**os.environ, **self._environment(files)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds + _GRACE_SECONDS,
                check=False,
            )
        executions = [int(each) for each in _EXECUTIONS.findall(process.stdout)]
        edges = [int(each) for each in _EDGES.findall(process.stdout)]
        return Run(
            executions=max(executions, default=0),
            edges=max(edges, default=0),
            failed=process.returncode not in (0, _INTERRUPTED),
            output=process.stdout,
        )

    def _environment(self, files: str) -> Mapping[str, str]:
        return {"SMDIST_FUZZ_TARGET": self.name, "ASAN_OPTIONS": _SANITIZERS, "TMPDIR": files}


def _memory() -> str | None:
    """Return a folder in memory, in which files of inputs cost no time of a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def native_targets() -> list[FuzzedTarget]:
    environ = {name: value for name, value in os.environ.items() if name != "SMDIST_FUZZ_TARGET"}
    listed = subprocess.run([PROGRAM], env=environ, capture_output=True, text=True, check=True)
    return [FuzzedTarget(name=name, is_python=False) for name in listed.stdout.split()]


def python_targets() -> list[FuzzedTarget]:
    command = [sys.executable, HERE / "reader_process.py"]
    with tempfile.TemporaryDirectory(prefix="smdist-fuzz-") as files:
        environ = {**os.environ, "TMPDIR": files}
        listed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return [FuzzedTarget(name=name, is_python=True) for name in listed.stdout.split()]
