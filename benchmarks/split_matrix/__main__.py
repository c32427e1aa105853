# SPDX-License-Identifier: Apache-2.0
"""Split ten models into 2, 3 and 4 stages in every use and write docs/models.md.

Each is compared with the whole model: `verify` runs both and returns how much the gradients differ.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.harness.models import zoo
from benchmarks.harness.report import table
from benchmarks.split_matrix.tracer import verdict
from benchmarks.split_matrix.uses import USES
from smdist.modelparallel.core.graph import NodeKind
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.torch.capture import Captured, capture
from smdist.modelparallel.torch.verification.verify import Verified, verify

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- begin: written by `make split-matrix` -->\n", "<!-- end -->\n"
STAGES = (2, 3, 4)
THEIRS = """
torch.distributed.pipelining's `pipeline()` with the same models on 3 stages: processes, 1F1B, 4
microbatches of one row, Gloo. Its most favourable use: one tensor out, no mask, each stage gets the
keyword arguments that it takes, the loss is outside, stages begin at units.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Plan for verify(): stages of units, and the blocks inside which stages may begin and end."""

    stages: tuple[tuple[str, ...], ...]
    opened: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Result of a model in one use: by number of stages, a numerical error or the exception."""

    results: tuple[float | str, ...]
    captured: Captured | None

    @property
    def raised(self) -> str | None:
        return next((each for each in self.results if isinstance(each, str)), None)

    @property
    def text(self) -> str:
        if self.raised:
            return "refused"
        worst = max(each for each in self.results if isinstance(each, float))
        return f"{worst:.0e}" if worst else "0"

    def is_within(self, bound: float) -> bool:
        return all(isinstance(each, float) and each <= bound for each in self.results)


def tried(name: str, use: str) -> Tried | None:
    """Return the result of a model in one use, or None if the model does not have this use."""
    if not _runs(name, use):
        return None
    results: list[float | str] = []
    captured = None
    for stages in STAGES:
        specimen = USES[use].make(name)
        try:
            with USES[use].around():
                found = _verified(specimen, stages, is_opened=USES[use].is_opened)
            captured = found.captured
            results.append(max(found.relative_error, found.output_error, found.buffer_error))
        except Exception as failure:  # any failure is the result
            results.append(_in_short(failure))
    return Tried(results=tuple(results), captured=captured)


def _verified(specimen: zoo.Specimen, num_stages: int, *, is_opened: bool) -> Verified:
    """Return how much the gradients of the split model differ; raise nothing for a large error."""
    model, batch = specimen.model, specimen.batch
    if not is_opened:
        return verify(model, batch, stages=num_stages, tolerance=1.0)
    opened = _blocks(model, batch)
    names = [unit.name for unit in placed_units(capture(model, batch, opened=opened).graph)]
    ends = [len(names) * stage // num_stages for stage in range(num_stages + 1)]
    stages = tuple(tuple(names[begin:end]) for begin, end in pairwise(ends))
    return verify(model, batch, plan=Opened(stages=stages, opened=opened), tolerance=1.0)


def _blocks(model: nn.Module, batch: Any) -> tuple[str, ...]:
    units = [model.get_submodule(unit.module) for unit in capture(model, batch).graph.units]
    named = {module: name for name, module in model.named_modules()}
    return tuple(named[unit] for unit in units if any(True for _ in unit.children()))


def _in_short(failure: Exception) -> str:
    """Return the first words of an exception, without file locations of this machine."""
    text = re.sub(r"/\S*site-packages/", "", str(failure).splitlines()[0])
    return f"{type(failure).__name__}: {text.split(' at transformers/')[0].split('. ')[0][:90]}"


def _runs(name: str, use: str) -> bool:
    """Return whether the whole model itself runs in this use."""
    specimen = USES[use].make(name)
    if specimen is None:
        return False
    try:
        with USES[use].around():
            specimen.run()
    except Exception:
        return False
    return True


def models(found: dict[str, dict[str, Tried | None]]) -> str:
    """Return the table of each model's parts, and its error for each number of stages."""
    rows = []
    for name, uses in found.items():
        train = uses["dropout"]
        assert train is not None
        rows.append([name, *_parts(train.captured), *map(_cell, train.results)])
    stages = [f"{number} stages" for number in STAGES]
    return table(["model", "class", "units", "glue", "kept whole", *stages], rows)


def _parts(captured: Captured | None) -> list[str]:
    if captured is None:
        return ["", "", "", ""]
    nodes = captured.graph.nodes
    glue = sum(node.kind is NodeKind.GLUE for node in nodes)
    whole = ", ".join(f"`{note.about}`" for note in captured.notes) or "-"
    return [captured.graph.model, str(len(captured.graph.units)), str(glue), whole]


def _cell(result: float | str) -> str:
    return result if isinstance(result, str) else (f"{result:.0e}" if result else "0")


def all_uses(found: dict[str, dict[str, Tried | None]]) -> str:
    """Return the table of the worst error of each model in each use."""
    rows = [
        [use, *("-" if each[use] is None else each[use].text for each in found.values())]
        for use in USES
    ]
    return table(["use", *found], rows)


def refusals(found: dict[str, dict[str, Tried | None]]) -> Iterator[str]:
    """Yield each refusal with the names of its models."""
    by_words: dict[str, list[str]] = {}
    for name, uses in found.items():
        for use, each in uses.items():
            if each is not None and each.raised:
                by_words.setdefault(f"{use}: {each.raised}", []).append(name)
    for words, names in by_words.items():
        yield f"* {words} ({', '.join(names)})"


def written(page: str, text: str) -> str:
    """Return the page with the text between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + END + after


def sections(found: dict[str, dict[str, Tried | None]], verdicts: dict[str, str]) -> Iterator[str]:
    yield f"\ntorch {torch.__version__}, transformers {transformers.__version__}.\n"
    yield models(found)
    yield "\nThe largest error of 2, 3 and 4 stages; `-`: the model has no such thing.\n"
    yield all_uses(found)
    yield "\nRefused:\n"
    yield from refusals(found)
    if verdicts:
        yield THEIRS
        yield table(["model", "`pipeline()`"], [list(each) for each in verdicts.items()])
    yield ""


def main() -> None:
    arguments = _arguments()
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    found: dict[str, dict[str, Tried | None]] = {}
    for name in arguments.models:
        found[name] = {use: tried(name, use) for use in USES}
        by_words = {use: each.raised or each.text for use, each in found[name].items() if each}
        print(name, by_words, flush=True)
    verdicts = {}
    for name in arguments.models if arguments.tracer else ():
        verdicts[name] = verdict(name)
        print(f"pipeline(): {name}: {verdicts[name]}", flush=True)
    if arguments.models == list(zoo.TEN):
        PAGE.write_text(written(PAGE.read_text(), "\n".join(sections(found, verdicts))))
    wrong = [
        f"{name}, {use}: {each.raised or each.text}"
        for name, uses in found.items()
        for use, each in uses.items()
        if each is not None and not each.is_within(USES[use].bound)
    ]
    print(f"\n{len(wrong)} results are wrong:", *wrong, sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("split_matrix", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.TEN), choices=zoo.TEN)
    parser.add_argument("--tracer", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
