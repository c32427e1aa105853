# SPDX-License-Identifier: Apache-2.0
"""Benchmark of predictions: layouts of small models on two emulated hosts; see README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Final

from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table
from benchmarks.plan_accuracy.models import LAYOUTS, MODELS
from benchmarks.plan_accuracy.predicted import Predicted, machine_of
from smdist.launch.environment import kept_memory
from smdist.modelparallel.core import calibration
from smdist.modelparallel.core.layout import Layout, Machine

_WORK: Final = "benchmarks.plan_accuracy.work"
_PREDICT: Final = "benchmarks.plan_accuracy.predicted:predict"
# With these, the C library gives freed memory back: a process's peak is that of its tensors.
_NOTHING_KEPT: Final = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
_APART: Final = 1.15  # layouts whose measured times differ by less are not ranked
_COLUMNS: Final = [
    *("model", "layout", "predicted s", "range", "measured s", "ratio"),
    *("before MiB", "predicted MiB", "measured MiB", "ratio"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Prediction and measurement of one layout; seconds of a step, bytes of the fullest rank.

    Attributes:
        model: Name of the model.
        layout: The layout.
        predicted_seconds: Predicted time.
        low_seconds: Lower end of its range.
        high_seconds: Upper end.
        seconds: Measured time: lower quartile of the steps, as of the seconds of layers, since a
            disturbance makes a step slower, never faster.
        before_bytes: Measured memory of the process before the model, with all libraries.
        predicted_bytes: Predicted peak of the process: the prediction added to `before_bytes`.
        bytes: Measured peak of the process.
    """

    model: str
    layout: str
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    seconds: float
    before_bytes: float
    predicted_bytes: float
    bytes: float

    @property
    def is_in_range(self) -> bool:
        """True if the measured time is within the prediction's range."""
        return self.low_seconds <= self.seconds <= self.high_seconds


def main() -> None:
    arguments = _arguments()
    models = arguments.models[: 1 if arguments.sample else None]
    layouts = LAYOUTS[: 3 if arguments.sample else None]
    device = _calibrated(4 if arguments.sample else 25, arguments.megabits)
    rows = []
    with EmulatedHosts(2, f"{arguments.megabits}mbit", name="pa", network="10.78.0") as hosts:
        for name in models:
            found = _predictions(name, layouts, device, hosts, arguments.costs)
            for layout, guess in zip(layouts, found, strict=True):
                rows.append(_row(name, layout, guess, hosts, arguments.rounds))
                print(" ".join(_cells(rows[-1])), flush=True)
    text = table(_COLUMNS, [_cells(row) for row in rows])
    print(f"\n{machine()}; two hosts, one rank of one thread each\n\n{text}\n\n{_verdict(rows)}")
    name = "plan_accuracy_sample" if arguments.sample else "plan_accuracy"
    save(name, f"{text}\n\n{_verdict(rows)}", [asdict(row) for row in rows])


def _calibrated(seconds: int, megabits: int) -> Machine:
    """Measure this machine with `sagemaker-dist calibrate`'s program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        program = [sys.executable, "-m", "smdist.modelparallel.calibrate"]
        options = ["--output", str(path), "--seconds", str(seconds)]
        one = {**os.environ, "OMP_NUM_THREADS": "1"}  # ranks compute with one thread
        subprocess.run([*program, *options], check=True, stdout=sys.stderr, env=one)
        return machine_of(calibration.load(path), megabits * 1e6)


def _predictions(
    name: str, layouts: Sequence[Layout], device: Machine, hosts: EmulatedHosts, costs: str
) -> list[Predicted]:
    """Predict all layouts of a model on all ranks at once; return those of the slowest rank.

    Ranks measure the model at the same time, as they compute at the same time: processors of one
    machine share caches and the memory.
    """
    with _environment(kept_memory({})), Ranks("smdist", hosts.places(1)) as ranks:
        found = ranks.call(_PREDICT, name=name, layouts=layouts, machine=device, costs=costs)
    slowest: list[Predicted] = max(found, key=lambda each: each[0].prediction.step_seconds)
    return slowest


def _row(name: str, layout: Layout, found: Predicted, hosts: EmulatedHosts, rounds: int) -> Row:
    """Run a layout in ranks of its own, once for its time and once for its memory."""
    how = {
        "name": name, "options": layout.options(), "checkpointed": list(found.checkpointed)
    }  # fmt: skip
    with _environment(kept_memory({})), Ranks("smdist", hosts.places(1)) as ranks:
        ranks.call(f"{_WORK}:prepare", **how)
        steps = sorted(max(ranks.call(f"{_WORK}:measure")) for _ in range(rounds))
    with _environment(_NOTHING_KEPT), Ranks("smdist", hosts.places(1)) as ranks:
        ranks.call(f"{_WORK}:prepare", **how)
        before, peak = max(ranks.call(f"{_WORK}:process_bytes"), key=itemgetter(1))
    guess = found.prediction
    return Row(
        model=name, layout=str(layout), predicted_seconds=guess.step_seconds,
        low_seconds=guess.low_seconds, high_seconds=guess.high_seconds, seconds=steps[rounds // 4],
        before_bytes=before, predicted_bytes=before + guess.memory.total, bytes=peak,
    )  # fmt: skip


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, which ranks inherit, until the end of the block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _cells(row: Row) -> list[str]:
    mib = 2**20
    return [
        row.model,
        row.layout,
        f"{row.predicted_seconds:.3f}",
        f"{row.low_seconds:.3f} to {row.high_seconds:.3f}",
        f"{row.seconds:.3f}",
        f"{row.seconds / row.predicted_seconds:.2f}",
        f"{row.before_bytes / mib:.0f}",
        f"{row.predicted_bytes / mib:.0f}",
        f"{row.bytes / mib:.0f}",
        f"{row.bytes / row.predicted_bytes:.2f}",
    ]


def _verdict(rows: Sequence[Row]) -> str:
    """Return one sentence with the number of rows within each bar, and Kendall's tau."""
    near = sum(abs(row.seconds / row.predicted_seconds - 1) <= 0.15 for row in rows)
    inside = sum(row.is_in_range for row in rows)
    held = sum(abs(row.bytes / row.predicted_bytes - 1) <= 0.10 for row in rows)
    tau = kendall_tau(rows)
    ranked = "no two layouts differ by 15 %" if tau is None else f"Kendall's tau is {tau:.2f}"
    return (
        f"Of {len(rows)} layouts, step times of {near} are within 15 % and of {inside} within the"
        f" range, peak memory of the process of {held} within 10 %; {ranked}."
    )


def kendall_tau(rows: Sequence[Row]) -> float | None:
    """Return Kendall's tau over pairs of layouts of one model whose measured times differ by 15 %.

    1 means that all such pairs are predicted in the right order, -1 that none is; None if there are
    no such pairs.
    """
    pairs = [
        (one, other)
        for one, other in combinations(rows, 2)
        if one.model == other.model
        and max(one.seconds, other.seconds) > _APART * min(one.seconds, other.seconds)
    ]
    right = sum(
        (one.seconds < other.seconds) == (one.predicted_seconds < other.predicted_seconds)
        for one, other in pairs
    )
    return (2 * right - len(pairs)) / len(pairs) if pairs else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", action="store_true", help="three layouts of one model")
    parser.add_argument("--costs", choices=["measure", "estimate"], default="measure")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=11, help="measured steps of each layout")
    parser.add_argument("--megabits", type=int, default=1000, help="rate of a host's link")
    return parser.parse_args()


if __name__ == "__main__":
    main()
