# SPDX-License-Identifier: Apache-2.0
"""Benchmark of layers that are split over two ranks, beside torch's `parallelize_module` over Gloo.

Both run the same block with the same weights: an MLP, a block of GPT, and a head with its loss, of
width 1,024 and 32,768 words, forward and backward, on one processor for each rank. The loss is
computed on parts of the logits, in both peers' `loss_parallel`. torch gets the plan by hand; smdist
finds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

WORK = "benchmarks.tensor_parallel.work"
COLUMNS = [
    "block", "tokens", "smdist", "Gloo", "/ Gloo", "CPU s", "Gloo's CPU s", "in sums",
    "Gloo in sums", "of Gloo's", "without waits", "Gloo without waits", "of Gloo's",
]  # fmt: skip
_PASSES = 15


@dataclass
class Row:
    """Row of the table; times are in seconds."""

    kind: str
    tokens: int
    series: dict[str, Series]
    in_sums: dict[str, float]
    without_waits: dict[str, float]

    def cells(self) -> list[str]:
        ours, theirs = self.series["smdist"], self.series["gloo"]
        return [
            self.kind,
            f"{self.tokens:,}",
            time_text(ours.seconds),
            time_text(theirs.seconds),
            f"{theirs.seconds / ours.seconds:.2f}",
            f"{ours.cpu_seconds:.3g}",
            f"{theirs.cpu_seconds:.3g}",
            time_text(self.in_sums["smdist"]),
            time_text(self.in_sums["gloo"]),
            f"{self.in_sums['smdist'] / self.in_sums['gloo']:.2f}",
            time_text(self.without_waits["smdist"]),
            time_text(self.without_waits["gloo"]),
            f"{self.without_waits['smdist'] / self.without_waits['gloo']:.2f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser("tensor_parallel", description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 2048])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with EmulatedHosts(1, "10gbit") as emulated, ExitStack() as stack:
        places = emulated.places(2)
        everyone = {p: stack.enter_context(Ranks(p, places)) for p in ("smdist", "gloo")}
        for kind in ("mlp", "gpt", "head"):
            for tokens in arguments.tokens:
                rows.append(_row(everyone, kind, tokens, arguments.rounds))
                print(" ".join(rows[-1].cells()), flush=True)
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}\n\n{text}")
    save("tensor_parallel", text, [asdict(row) for row in rows])


def _row(everyone: dict[str, Ranks], kind: str, tokens: int, rounds: int) -> Row:
    outputs = {}
    for peer, ranks in everyone.items():
        ranks.call(f"{WORK}:prepare", kind=kind, tokens=tokens, peer=peer)
        outputs[peer] = ranks.call(f"{WORK}:check", kind=kind, tokens=tokens)[0]
    difference = abs(outputs["smdist"] - outputs["gloo"])
    assert difference <= 1e-4 * max(1.0, abs(outputs["gloo"])), outputs
    work = {name: (ranks, f"{WORK}:{kind}_{tokens}") for name, ranks in everyone.items()}
    series = interleave(work, rounds)
    in_sums, without_waits = {}, {}
    for peer, ranks in everyone.items():
        found = ranks.call(f"{WORK}:exchange", name=f"{kind}-{tokens}", rounds=_PASSES)
        in_sums[peer] = max(median(map(sum, passes)) for passes in found)
        without_waits[peer] = median(_moved(passes) for passes in zip(*found, strict=True))
    return Row(kind, tokens, series, in_sums, without_waits)


def _moved(ranks: Sequence[Sequence[float]]) -> float:
    """Return the seconds in which the collectives of a pass move and add data.

    The rank that comes last to a collective waits for nobody, so its time is the shortest one.

    Args:
        ranks: Seconds of each collective, for each rank.
    """
    return sum(min(times) for times in zip(*ranks, strict=True))


if __name__ == "__main__":
    main()
