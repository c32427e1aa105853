# SPDX-License-Identifier: Apache-2.0
"""Benchmark of predictions: layouts of small models on two emulated hosts; see README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table
from benchmarks.plan_accuracy.models import LAYOUTS, MODELS
from benchmarks.plan_accuracy.predicted import machine_of, predict
from smdist.modelparallel.core import calibration
from smdist.modelparallel.core.layout import Layout, Machine

_WORK: Final = "benchmarks.plan_accuracy.work"
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
        seconds: Measured time.
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
            for layout in layouts:
                rows.append(_row(name, layout, device, hosts, arguments.rounds))
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


def _row(name: str, layout: Layout, device: Machine, hosts: EmulatedHosts, rounds: int) -> Row:
    """Predict a layout, then run it in ranks of its own."""
    found = predict(name, layout, device)
    with Ranks("smdist", hosts.places(1)) as ranks:
        checkpointed = list(found.checkpointed)
        ranks.call(
            f"{_WORK}:prepare", name=name, options=layout.options(), checkpointed=checkpointed
        )
        seconds = median(max(ranks.call(f"{_WORK}:measure")) for _ in range(rounds))
        before, peak = max(ranks.call(f"{_WORK}:process_bytes"), key=itemgetter(1))
    guess = found.prediction
    return Row(
        model=name, layout=str(layout), predicted_seconds=guess.step_seconds,
        low_seconds=guess.low_seconds, high_seconds=guess.high_seconds, seconds=seconds,
        before_bytes=before, predicted_bytes=before + guess.memory.total, bytes=peak,
    )  # fmt: skip


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
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each layout")
    parser.add_argument("--megabits", type=int, default=1000, help="rate of a host's link")
    return parser.parse_args()


if __name__ == "__main__":
    main()
