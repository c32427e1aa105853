# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a GPT on two ranks of one thread against torch and one process; see README.md."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import dist, hypot
from typing import Any

from benchmarks.harness.hosts import Host
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table
from benchmarks.pipeline_throughput.model import LAYERS, LENGTH, MICROBATCHES
from benchmarks.pipeline_throughput.plot import draw

MODULE = "benchmarks.pipeline_throughput.work"
ONE, EQUAL = "one process", (LAYERS // 2, LAYERS // 2)
OURS = {"smdist, as it is by default": "auto", "smdist, interleaved": "interleaved"}
BARS = {"torch, equal layers": 1.10, "torch, best cut by hand": 0.97}
COLUMNS = ["", "stages", "s/step", "10 % to 90 %", "tokens/s", "x one process", "CPU s/step"]
Layers = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Contender of the benchmark: its ranks, its name there, and its layers by stage."""

    ranks: Ranks
    name: str
    layers: str

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Call a function of `work` on each rank for this contender and return the results."""
        return self.ranks.call(function, name=self.name, **arguments)


def main() -> None:
    arguments = _arguments()
    with ExitStack() as stack:
        everyone = _contenders(stack, arguments.search_rounds)
        series = _measured(everyone, arguments.rounds)
    text = table(COLUMNS, [_cells(name, everyone[name], series) for name in everyone])
    print(f"\n{machine()}; one thread a rank\n\n{text}\n")
    print(*_verdicts(series), sep="\n")
    save("pipeline_throughput", text, {k: asdict(each) for k, each in series.items()}, draw(series))


def _contenders(stack: ExitStack, search_rounds: int) -> dict[str, Contender]:
    """Return the contenders, after a check that each computes the gradients of one process."""
    here = Host(0)
    alone = stack.enter_context(Ranks("gloo", [here]))
    theirs = stack.enter_context(Ranks("gloo", [here, here]))
    alone.call(f"{MODULE}:one_process")
    best = _best_cut(theirs, search_rounds)
    for layers in {EQUAL, best}:
        theirs.call(f"{MODULE}:by_torch", layers=layers)
    everyone = {
        ONE: Contender(ranks=alone, name="one", layers=str(LAYERS)),
        "torch, equal layers": _by_torch(theirs, EQUAL),
        "torch, best cut by hand": _by_torch(theirs, best),
        **{name: _by_us(stack, pipeline) for name, pipeline in OURS.items()},
    }
    _check(everyone)
    return everyone


def _best_cut(ranks: Ranks, rounds: int) -> Layers:
    """Return the fastest of all cuts into two stages, measured in turns."""
    cuts = [(first, LAYERS - first) for first in range(1, LAYERS)]
    for cut in cuts:
        ranks.call(f"{MODULE}:by_torch", layers=cut)
    series = _measured({_text(cut): _by_torch(ranks, cut) for cut in cuts}, rounds)
    for text, each in series.items():
        print(f"torch, {text} layers: {each.seconds:.3f} s", flush=True)
    return min(cuts, key=lambda cut: series[_text(cut)].seconds)


def _by_us(stack: ExitStack, pipeline: str) -> Contender:
    ranks = stack.enter_context(Ranks("smdist", [Host(0), Host(0)]))
    cut = ranks.call(f"{MODULE}:by_us", pipeline=pipeline)[0]
    return Contender(ranks=ranks, name="smdist", layers=cut)


def _by_torch(ranks: Ranks, layers: Layers) -> Contender:
    return Contender(ranks=ranks, name=f"torch {_text(layers)}", layers=_text(layers))


def _measured(everyone: Mapping[str, Contender], rounds: int) -> dict[str, Series]:
    return interleave({key: (each, f"{MODULE}:measure") for key, each in everyone.items()}, rounds)


def _check(everyone: Mapping[str, Contender]) -> None:
    found = {name: _gradients(each) for name, each in everyone.items()}
    whole = found[ONE]
    for name, gradients in found.items():
        assert gradients.keys() == whole.keys(), f"{name} has other parameters"
        worst = max(dist(gradients[key], whole[key]) / hypot(*whole[key]) for key in whole)
        print(f"{name}: gradients differ by {worst:.0e}", flush=True)
        assert worst <= 1e-5, f"{name} computes something else"


def _gradients(contender: Contender) -> dict[str, Any]:
    parts = contender.call(f"{MODULE}:gradients")
    return {key: numbers for part in parts for key, numbers in part.items()}


def _cells(name: str, contender: Contender, series: Mapping[str, Series]) -> list[str]:
    own, (low, high) = series[name], series[name].spread
    return [
        name,
        contender.layers,
        f"{own.seconds:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{MICROBATCHES * LENGTH / own.seconds:.0f}",
        f"{_times(series, name, ONE):.2f}",
        f"{own.cpu_seconds:.2f}",
    ]


def _times(series: Mapping[str, Series], name: str, other: str) -> float:
    return series[other].seconds / series[name].seconds


def _verdicts(series: Mapping[str, Series]) -> list[str]:
    """Return sentences with the ratios of medians, and whether each reaches its target."""
    ratios = {(name, other): _times(series, name, other) for name in OURS for other in BARS}
    return [
        f"{name} is {ratio:.2f} times as fast as {other}: {BARS[other]:.2f} is "
        f"{'met' if ratio >= BARS[other] else 'NOT met'}"
        for (name, other), ratio in ratios.items()
    ]


def _text(layers: Layers) -> str:
    return f"{layers[0]}/{layers[1]}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("pipeline_throughput", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search-rounds", type=int, default=5, help="for the best cut by hand")
    return parser.parse_args()


if __name__ == "__main__":
    main()
