# SPDX-License-Identifier: Apache-2.0
"""Benchmark of partitioning methods: slowest stage over the mean of stages; see README.md."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median

import torch

from benchmarks.balance.methods import METHODS, OURS, imbalances, is_best
from benchmarks.balance.plot import draw
from benchmarks.harness.models import zoo
from benchmarks.harness.report import machine, save, table
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.measure import measure

COLUMNS = ["model", "units", "parts / step", "stages", *METHODS, "best there is"]
MARKS = {True: "yes", False: "no", None: "-"}


@dataclass
class Row:
    """Row of the table: one model, divided into one number of stages."""

    model: str
    num_units: int
    parts_of_step: float
    num_stages: int
    imbalance: Mapping[str, float]
    is_best: bool | None

    def cells(self) -> list[str]:
        loads = [f"{self.imbalance[method]:.2f}" for method in METHODS]
        numbers = [str(self.num_units), f"{self.parts_of_step:.2f}", str(self.num_stages)]
        return [self.model, *numbers, *loads, MARKS[self.is_best]]


def rows_of(model: str, arguments: argparse.Namespace) -> Iterator[Row]:
    specimen = zoo.sized(model, rows=arguments.rows)
    captured = capture(specimen.model, specimen.batch)
    costs = measure(captured, repeats=arguments.repeats)
    parts = sum(cost.seconds for cost in costs.nodes.values())
    parts_of_step = parts / step_seconds(specimen, arguments.repeats)
    for number in arguments.stages:
        row = Row(
            model=model,
            num_units=len(captured.graph.units),
            parts_of_step=parts_of_step,
            num_stages=number,
            imbalance=imbalances(captured.graph, costs, number),
            is_best=is_best(captured.graph, costs, number),
        )
        print(" ".join(row.cells()), flush=True)
        yield row


def step_seconds(specimen: zoo.Specimen, repeats: int) -> float:
    """Return the seconds of forward and backward of the whole model, to compare with its parts."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        specimen.loss().backward()
        times.append(time.perf_counter() - begin)
    return median(times[1:])


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    rows = [row for model in arguments.models for row in rows_of(model, arguments)]
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}; torch {torch.__version__}, one thread\n\n{text}")
    save("balance", text, [asdict(row) for row in rows], draw(rows, METHODS))
    even = sum(row.imbalance[OURS] <= min(row.imbalance.values()) + 1e-9 for row in rows)
    print(f"\n{even} of {len(rows)} times no other method divides more evenly")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("balance", description=__doc__)
    parser.add_argument("--models", nargs="+", default=zoo.BALANCE, choices=zoo.BALANCE)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rows", type=int, default=4, help="samples in a microbatch")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each kind of unit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
