# SPDX-License-Identifier: Apache-2.0
"""Train fifteen models with layers split over 2 and 4 ranks, and write docs/tensor_models.md.

Each is compared with one process that accumulates the same microbatches, also with two stages, with
two replicas, and with both on eight ranks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import transformers

from benchmarks.harness.report import table
from benchmarks.tensor_matrix.columns import COLUMNS, FLOAT32_INSIDE, LOSSES, Column, bound
from benchmarks.tensor_matrix.tools import (
    MICROBATCHES,
    Run,
    TensorCase,
    TensorDifference,
    World,
    alone,
    compared,
    zoo,
)

PAGE = Path(__file__).parents[2] / "docs" / "tensor_models.md"
BEGIN, END = "<!-- begin: written by `make tensor-matrix` -->\n", "<!-- end -->\n"
DEADLINE_SECONDS = 600.0  # deadline of one case, which takes seconds on an idle machine
REFUSED = "refused"
Outcome = TensorDifference | str
Outcomes = dict[tuple[str, str], Outcome]


class Trials:
    """Runner of cases, one after another on the same ranks."""

    def __init__(self, world: World, steps: int) -> None:
        self._world, self._steps = world, steps
        self._expected: dict[tuple[object, int], Run] = {}
        self.wrong: list[str] = []

    def run(self, models: list[str], columns: list[Column]) -> Outcomes:
        """Run every model in every column and return the outcomes by model and title."""
        found: Outcomes = {}
        for model in models:
            for column in columns:
                begin = time.perf_counter()
                outcome = found[model, column.title] = self._tried(model, column)
                seconds = time.perf_counter() - begin
                print(f"{column.case(model)}: {_verdict(outcome)} ({seconds:.1f} s)", flush=True)
                if not is_within(outcome, column.case(model)) and not _is_refused(outcome):
                    self.wrong.append(f"{column.case(model)}: {_verdict(outcome)}")
        return found

    def _tried(self, model: str, column: Column) -> Outcome:
        case, steps = column.case(model), column.steps or self._steps
        try:
            expected = self._alone(case, steps)
            return compared(self._world, case, expected, deadline=DEADLINE_SECONDS)
        except Exception as failure:  # any failure is the outcome
            lines = str(failure).strip().splitlines() or [""]
            return f"{type(failure).__name__}: {lines[-1][:300]}"

    def _alone(self, case: TensorCase, steps: int) -> Run:
        key = (case.training, steps)
        if key not in self._expected:
            self._expected = {key: alone(case, steps), **self._expected}
        return self._expected[key]


def is_within(outcome: Outcome, case: TensorCase) -> bool:
    """Return whether the run equals that of one process, except for rounding."""
    return (
        isinstance(outcome, TensorDifference)
        and outcome.gradient <= bound(case.model, case.dtype)
        and outcome.loss <= LOSSES[case.optimizer]
    )


def _is_refused(outcome: Outcome) -> bool:
    return isinstance(outcome, str) and "can be split" in outcome


def _verdict(outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    return f"gradients {outcome.gradient:.1e} ({outcome.parameter}), losses {outcome.loss:.1e}"


def on_layouts(models: list[str], columns: list[Column], found: Mapping[object, Outcome]) -> str:
    """Return the table of models by columns: differences of gradients and losses."""
    rows = [
        [model, *(_cell(found[model, column.title], column.case(model)) for column in columns)]
        for model in models
    ]
    return table(["model", *(column.title for column in columns)], rows)


def shares(models: list[str], columns: list[Column], found: Mapping[object, Outcome]) -> str:
    """Return the table of the share of parameters that is split, without and with dropout."""
    rows = []
    for model in models:
        plain = _share([found[model, column.title] for column in columns if not column.dropout])
        dropped = _share([found[model, column.title] for column in columns if column.dropout])
        rows.append([model, plain, dropped])
    return table(["model", "split", "split with dropout"], rows)


def _share(outcomes: list[Outcome]) -> str:
    runs = [each.share for each in outcomes if isinstance(each, TensorDifference)]
    return f"{100 * min(runs):.0f} %" if runs else REFUSED


def _cell(outcome: Outcome, case: TensorCase) -> str:
    if _is_refused(outcome):
        return REFUSED
    if isinstance(outcome, str):
        return f"fails: {outcome}"
    sign = "" if is_within(outcome, case) else "**wrong** "
    return f"{sign}{_short(outcome.gradient)}, {_short(outcome.loss)}"


def _short(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def sections(
    models: list[str], columns: list[Column], found: Mapping[object, Outcome], steps: int
) -> Iterator[str]:
    """Yield the lines of the written part of the page."""
    yield f"\ntorch {torch.__version__}, transformers {transformers.__version__}; {steps} steps"
    yield f"(2 in float64), {MICROBATCHES} microbatches of all replicas together. A cell has the"
    yield "largest error of a gradient in the first step, relative to its norm, and the largest"
    yield "difference of a loss. Norms, routers or scans of some models compute in float32, also if"
    yield f"the model is in float64: {', '.join(FLOAT32_INSIDE)}.\n"
    yield on_layouts(models, columns, found)
    yield "\nThe share of parameters in split layers, the smallest of these layouts:\n"
    yield shares(models, columns, found)
    good = sum(is_within(found[m, c.title], c.case(m)) for m in models for c in columns)
    yield f"\n{good} of {len(models) * len(columns)} runs are those of one process.\n"
    refused = {m: o for m in models for c in columns if _is_refused(o := found[m, c.title])}
    for model, outcome in refused.items():
        yield f"* {model} is refused: {str(outcome).partition('OptionError: ')[2]}"


def written(page: str, text: str) -> str:
    """Return the page with the text between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + "\n" + END + after


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    models, columns = arguments.models, list(COLUMNS)
    world = World(2)
    try:
        trials = Trials(world, arguments.steps)
        found = trials.run(models, columns)
    finally:
        world.close()
    text = "\n".join(sections(models, columns, found, arguments.steps))
    print(text)
    if models == list(zoo.FIFTEEN):
        PAGE.write_text(written(PAGE.read_text(), text))
    print(f"{len(trials.wrong)} results are wrong:", *trials.wrong, sep="\n")
    raise SystemExit(bool(trials.wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tensor_matrix", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.FIFTEEN), choices=zoo.FIFTEEN)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
