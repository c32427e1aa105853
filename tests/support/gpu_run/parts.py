# SPDX-License-Identifier: Apache-2.0
"""What each part runs: commands, how their results are read, and why some cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpu_run.machine import Machine

PART_SECONDS = 480.0
_SUITE_SECONDS = 40  # of one test of PyTorch's suite
_STAGING = "tests/runtime/dataparallel/test_staging"
_PROGRAMS = "200"
_RANKS_IN_TWO_LEVELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a part.

    Attributes:
        reads: "results": the command writes the result of each test to the file
            SMDIST_TEST_RESULTS; "output": it prints them; "exit code": it is one result.
        is_of_peer: The results are those of another backend, for comparison: no failure counts.
        share: Part of the time that is left which the step may take; a peer that takes longer is
            ended, and what it has passed by then counts.
        tables: File whose text the report takes over; None: there is none.
        unavailable: Why the step cannot run on this machine; "": it can.
    """

    name: str
    command: tuple[str, ...]
    reads: Literal["results", "output", "exit code"] = "exit code"
    environ: dict[str, str] = field(default_factory=dict)
    is_of_peer: bool = False
    share: float = 1.0
    tables: Path | None = None
    unavailable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where steps run.

    Attributes:
        results: Folder of the files with results and of the logs.
    """

    python: Path
    device: str
    root: Path
    results: Path
    machine: Machine

    @property
    def has_gpu(self) -> bool:
        """Return whether the device is a GPU, and not one on which this command is tried."""
        return self.device == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Steps that take at most PART_SECONDS together."""

    name: str
    about: str
    steps: Callable[[Place], list[Step]]


def _pytest(place: Place, name: str, *files: str, **environ: str) -> Step:
    """Return a step that runs tests on the device, one after the other."""
    # A rank's stacks are in the log, also when this command is aborted.
    options = ("-q", "--capture=no", "-p", "gpu_run.record_results", "-W", "default")
    return Step(
        name=name,
        command=(str(place.python), "-m", "pytest", *options, *files),
        reads="results",
        environ={"SMDIST_TEST_DEVICE": place.device, **environ},
    )


def _collectives(place: Place) -> list[Step]:
    files = [f"{_STAGING}{name}.py" for name in ("", "_order", "_faults")]
    return [_pytest(place, "collectives", *files, SMDIST_TEST_DEVICE_PROGRAMS=_PROGRAMS)]


def _torch_suite(place: Place) -> list[Step]:
    """Return what Gloo passes on GPUs, and then the same with smdist."""
    suite = (str(place.python), "tests/torch_suite/suite.py")
    unavailable = "" if place.has_gpu else "these tests of PyTorch are for CUDA alone"
    of_gloo = place.results / "torch-suite-gloo.jsonl"
    limit = ("--deadline-seconds", str(_SUITE_SECONDS))
    gloo = (*suite, "gloo", "--on-gpu", "--everything", *limit)
    smdist = (*suite, "smdist", "--on-gpu", "--passes-of", str(of_gloo), *limit)
    how = {"reads": "output", "unavailable": unavailable}
    return [
        Step(name="torch-suite-gloo", command=gloo, is_of_peer=True, share=0.5, **how),
        Step(name="torch-suite-smdist", command=smdist, **how),
    ]


def _training(place: Place) -> list[Step]:
    scripts = "tests/runtime/dataparallel/scripts"
    hosts = [str(place.python), "-m", "gpu_run.on_hosts", "--device", place.device]
    if place.machine.no_namespaces:
        hosts.append("--without-namespaces")
    return [
        _pytest(place, "ddp-and-fsdp2", f"{_STAGING}_training.py"),
        Step(name="smddp-script-on-two-hosts", command=(*hosts, f"{scripts}/pictures.py")),
    ]


def _pipelines(place: Place) -> list[Step]:
    return [_pytest(place, "pipelines", "tests/runtime/dataparallel/test_device_pipelines.py")]


def _smdist_pipelines(place: Place) -> list[Step]:
    return [_pytest(place, "smdist-pipelines", "tests/runtime/modelparallel/torch/device")]


def _two_levels(place: Place) -> list[Step]:
    """Return the tests of two levels, for which each of four ranks needs a GPU of its own."""
    tests = "tests/runtime/dataparallel/test_two_level"
    files = [f"{tests}{name}.py" for name in ("s", "_training", "_faults")]
    number = len(place.machine.gpus)
    is_enough = number >= _RANKS_IN_TWO_LEVELS or not place.has_gpu
    unavailable = (
        "" if is_enough else f"it needs {_RANKS_IN_TWO_LEVELS} GPUs, and there are {number}"
    )
    return [replace(_pytest(place, "two-levels", *files), unavailable=unavailable)]


def _benchmarks(place: Place) -> list[Step]:
    benchmark = (str(place.python), "-m", "benchmarks.gpu", "--device", place.device)
    tables = place.root / "build" / "benchmarks" / "gpu.md"
    return [Step(name="benchmarks", command=benchmark, tables=tables)]


PARTS = (
    Part(
        name="collectives",
        about="every collective on the device's tensors: results, order, faults, random programs",
        steps=_collectives,
    ),
    Part(
        name="training",
        about="DDP and FSDP2 against one process; a script of SMDDP's shape on two hosts",
        steps=_training,
    ),
    Part(name="pipelines", about="torch's own pipelines against one process", steps=_pipelines),
    Part(
        name="smdist-pipelines",
        about="smdist's pipelines: training against one process, messages, faults, measured costs",
        steps=_smdist_pipelines,
    ),
    Part(
        name="two-levels",
        about="NCCL within a host and smdist between two hosts: results, training, faults",
        steps=_two_levels,
    ),
    Part(name="benchmarks", about="benchmarks/gpu", steps=_benchmarks),
    Part(
        name="torch-suite",
        about="what Gloo passes on GPUs of PyTorch's own tests of torch.distributed",
        steps=_torch_suite,
    ),
)
