# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a Keras GPT on two ranks of one core against one process and cuts by hand.

And of the steps of a small model, with and without what the ranks tell each other about a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.hosts import Host
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table

MODULE = "benchmarks.keras_pipeline.work"
PEER, BLOCKS = "smdist-tf", 6
ONE, OURS = "one process", "smdist, as it is by default"
SMALL, BARE = "a small model's step in fit", "the same without agreement and logs"
EXCHANGES = ["", "ms/step", "10 % to 90 %", "CPU ms/step"]
COLUMNS = ["", "stages", "s/step", "10 % to 90 %", "x one process", "CPU s/step"]


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
        pair = stack.enter_context(Ranks(PEER, [Host(0), Host(0)]))
        exchanges = _exchanges(pair, arguments.rounds)
        if arguments.only_exchanges:
            return
        everyone = _contenders(stack, pair, arguments.cuts)
        work = {key: (each, f"{MODULE}:measure") for key, each in everyone.items()}
        series = interleave(work, arguments.rounds)
    text = table(COLUMNS, [_cells(name, everyone[name], series) for name in everyone])
    print(f"\n{machine()}; one core a rank\n\n{text}\n")
    print(*_verdicts(series), sep="\n")
    found = {key: asdict(each) for key, each in (exchanges | series).items()}
    save("keras_pipeline", text, found)


def _exchanges(pair: Ranks, rounds: int) -> dict[str, Series]:
    """Print the cost of what the ranks tell each other in each step of fit, on a small model."""
    pair.call(f"{MODULE}:small_steps", whole=SMALL, bare=BARE)
    everyone = {name: Contender(ranks=pair, name=name, layers="") for name in (SMALL, BARE)}
    work = {name: (each, f"{MODULE}:measure") for name, each in everyone.items()}
    series = interleave(work, rounds)
    rows = []
    for name, own in series.items():
        low, high = (f"{1e3 * each:.2f}" for each in own.spread)
        ms = [f"{1e3 * each:.2f}" for each in (own.seconds, own.cpu_seconds)]
        rows.append([name, ms[0], f"{low} to {high}", ms[1]])
    print(f"\n{table(EXCHANGES, rows)}\n", flush=True)
    return series


def _contenders(stack: ExitStack, pair: Ranks, firsts: list[int]) -> dict[str, Contender]:
    """Return the contenders, after a check that each has the losses of one process.

    Args:
        stack: Stack that ends the ranks of one process.
        pair: Two ranks.
        firsts: Number of blocks on the first stage of each cut by hand.
    """
    alone = stack.enter_context(Ranks(PEER, [Host(0)], name="again"))
    [whole] = alone.call(f"{MODULE}:one_process")
    everyone = {ONE: Contender(ranks=alone, name="one", layers="all")}
    cuts = {_by_hand(first): {"pipeline": "1f1b", "first": first} for first in firsts}
    for name, options in {OURS: {"pipeline": "auto"}, **cuts}.items():
        layers, losses = pair.call(f"{MODULE}:in_stages", name=name, **options)[0]
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, whole, strict=True))
        print(f"{name}: {layers}; losses differ by {worst:.0e}", flush=True)
        assert worst <= 1e-5, f"{name} computes something else"
        everyone[name] = Contender(ranks=pair, name=name, layers=layers)
    return everyone


def _by_hand(first: int) -> str:
    return f"by hand, {first}/{BLOCKS - first}"


def _cells(name: str, contender: Contender, series: Mapping[str, Series]) -> list[str]:
    own, (low, high) = series[name], series[name].spread
    return [
        name,
        contender.layers,
        f"{own.seconds:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{series[ONE].seconds / own.seconds:.2f}",
        f"{own.cpu_seconds:.2f}",
    ]


def _verdicts(series: Mapping[str, Series]) -> list[str]:
    """Return sentences with the ratios of medians, and whether each reaches its target."""
    best = min((each for each in series if each not in (ONE, OURS)),
               key=lambda name: series[name].seconds)  # fmt: skip
    bars = {ONE: 1.4, best: 0.97}
    ratios = {other: series[other].seconds / series[OURS].seconds for other in bars}
    return [
        f"{OURS} is {ratio:.2f} times as fast as {other}: {bars[other]:.2f} is "
        f"{'met' if ratio >= bars[other] else 'NOT met'}"
        for other, ratio in ratios.items()
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("keras_pipeline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--cuts", type=int, nargs="+", default=[*range(1, BLOCKS + 1)], metavar="BLOCKS",
        choices=range(1, BLOCKS + 1), help="blocks on the first stage of each cut by hand",
    )  # fmt: skip
    parser.add_argument(
        "--only-exchanges", action="store_true", help="only measure what ranks tell each other"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
