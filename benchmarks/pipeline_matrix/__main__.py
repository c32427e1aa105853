# SPDX-License-Identifier: Apache-2.0
"""Train ten models on pipelines of 2, 3 and 4 ranks and write docs/pipelines.md.

Each is compared with one process that accumulates the same microbatches. Then a small model saves
checkpoints under eight layouts, and loads each checkpoint under all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.harness.report import table
from benchmarks.pipeline_matrix.cases import COLUMNS, RANKS, REPLICAS, pipelines, replicated
from benchmarks.pipeline_matrix.resumed import Apart, on_layouts, resumed, wrong
from benchmarks.pipeline_matrix.tools import (
    MICROBATCHES,
    Case,
    Difference,
    Run,
    World,
    alone,
    compared,
    zoo,
)

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
BEGIN, END = "<!-- begin: written by `make pipeline-matrix` -->\n", "<!-- end -->\n"
GRADIENT, LOSS = 1e-6, 1e-5  # largest differences that count as equal
DEADLINE_SECONDS = 600.0  # deadline of one case, which takes seconds on an idle machine
Outcome = Difference | str


class Trials:
    """Runner of cases, one after another on the same ranks."""

    def __init__(self, world: World, steps: int) -> None:
        self._world, self._steps = world, steps
        self._expected: dict[str, Run] = {}
        self.wrong: list[str] = []

    def run(self, cases: Mapping[Any, Case]) -> dict[Any, Outcome]:
        """Run the cases and return the outcome of each."""
        found: dict[Any, Outcome] = {}
        for number, (key, case) in enumerate(cases.items(), 1):
            begin = time.perf_counter()
            found[key] = self._tried(case)
            seconds = time.perf_counter() - begin
            verdict = _verdict(found[key])
            print(f"{number}/{len(cases)} {case}: {verdict} ({seconds:.1f} s)", flush=True)
            if not is_within(found[key]):
                self.wrong.append(f"{case}: {verdict}")
        return found

    def _tried(self, case: Case) -> Outcome:
        if case.model not in self._expected:
            self._expected[case.model] = alone(case.model, self._steps)
        try:
            expected = self._expected[case.model]
            return compared(self._world, case, expected, deadline=DEADLINE_SECONDS)
        except Exception as failure:  # any failure is the outcome
            lines = str(failure).strip().splitlines() or [""]
            print(failure, flush=True)
            return f"{type(failure).__name__}: {lines[-1][:120]}"


def is_within(outcome: Outcome) -> bool:
    """Return whether the run equals that of one process, except for rounding."""
    return isinstance(outcome, Difference) and outcome.gradient <= GRADIENT and outcome.loss <= LOSS


def _verdict(outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    return f"gradients {outcome.gradient:.1e} ({outcome.parameter}), losses {outcome.loss:.1e}"


def on_pipelines(models: list[str], found: Mapping[Any, Outcome]) -> str:
    """Return the table of models by schedules; a cell is the worst of all numbers of ranks."""
    rows = []
    for model in models:
        cells = [[found[model, ranks, each.title] for ranks in RANKS] for each in COLUMNS]
        rows.append([model, *map(_cell, cells)])
    return table(["model", *(each.title for each in COLUMNS)], rows)


def by_ranks(models: list[str], found: Mapping[Any, Outcome]) -> str:
    """Return the table of models by numbers of ranks; a cell is the worst of all schedules."""
    rows = []
    for model in models:
        cells = [[found[model, ranks, each.title] for each in COLUMNS] for ranks in RANKS]
        rows.append([model, *map(_cell, cells)])
    return table(["model", *(f"{ranks} ranks" for ranks in RANKS)], rows)


def on_replicas(found: Mapping[Any, Outcome]) -> str:
    """Return the table of models by the sharding of replicas."""
    models = dict.fromkeys(model for model, _ in found)
    rows = [[model, *(_cell([found[model, title]]) for title in REPLICAS)] for model in models]
    return table(["model", *REPLICAS], rows)


def _cell(outcomes: list[Outcome]) -> str:
    failed = [each for each in outcomes if isinstance(each, str)]
    if failed:
        return f"fails: {failed[0]}"
    worst = [each for each in outcomes if isinstance(each, Difference)]
    gradient, loss = max(e.gradient for e in worst), max(e.loss for e in worst)
    return f"{_short(gradient)}, {_short(loss)}"


def _short(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def sections(
    models: list[str],
    on: Mapping[Any, Outcome],
    beside: Mapping[Any, Outcome],
    apart: Apart,
    steps: int,
) -> Iterator[str]:
    yield f"\ntorch {torch.__version__}, transformers {transformers.__version__}; {steps} steps of"
    yield f"AdamW, {MICROBATCHES} microbatches, dropout 0.1 where a model has it.\n"
    yield "By schedule, the worst of 2, 3 and 4 ranks:\n"
    yield on_pipelines(models, on)
    yield "\nBy ranks, the worst of these schedules:\n"
    yield by_ranks(models, on)
    yield "\nTwo pipelines of two ranks beside each other:\n"
    yield on_replicas(beside)
    numbers = [each for each in [*on.values(), *beside.values()] if is_within(each)]
    yield f"\n{len(numbers)} of {len(on) + len(beside)} runs are those of one process.\n"
    yield "Checkpoints of a small model with tied and frozen weights and dropout: how far losses of"
    yield "the two steps after it are from those of the run that saved it and went on:\n"
    yield on_layouts(apart)
    yield f"\n{len(apart) - len(wrong(apart))} of {len(apart)} pairs go on alike to 5 decimals.\n"


def written(page: str, text: str) -> str:
    """Return the page with the text between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + END + after


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    models = arguments.models
    world = World(4)
    try:
        trials = Trials(world, arguments.steps)
        on = trials.run(pipelines(models))
        beside = trials.run(replicated(models))
        apart = resumed(world)
    finally:
        world.close()
    text = "\n".join(sections(models, on, beside, apart, arguments.steps))
    print(text)
    if models == list(zoo.TEN):
        PAGE.write_text(written(PAGE.read_text(), text))
    faults = trials.wrong + wrong(apart)
    print(f"{len(faults)} results are wrong:", *faults, sep="\n")
    raise SystemExit(bool(faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("pipeline_matrix", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.TEN), choices=zoo.TEN)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
