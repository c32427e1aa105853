# SPDX-License-Identifier: Apache-2.0
"""Benchmark of all_reduce against Gloo, OpenMPI and limits of memory and wire; see README.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from benchmarks.allreduce import bare
from benchmarks.allreduce.plot import draw
from benchmarks.harness.hosts import EmulatedHosts, Host
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, size_text, table, time_text

PREPARE = "benchmarks.allreduce.work:prepare"
MEASURE = "benchmarks.allreduce.work:measure"
FLOATS = ("openmpi", "bare")  # peers that sum float32 only
KIB, MIB = 1 << 10, 1 << 20
ONE_HOST_SIZES = [KIB, 8 * KIB, 64 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB, 256 * MIB]
HOSTS_SIZES = [KIB, 8 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
COLUMNS = [
    "ranks", "dtype", "size", "smdist", "GB/s", "of limit", "Gloo", "/ Gloo", "OpenMPI",
    "/ OpenMPI", "bare", "/ bare", "torch's call", "CPU s/GB", "Gloo's CPU", "bare's CPU",
    "packets/MB", "Gloo's", "bare's",
]  # fmt: skip


@dataclass
class Row:
    """Row of the table: one size of the buffer on one layout; times are in seconds."""

    layout: str
    ranks: int
    dtype: str
    size: int
    series: dict[str, Series]
    limit: float
    # packets sent by all hosts for one all-reduce, by peer
    packets: dict[str, float] = field(default_factory=dict)

    @property
    def bus_bandwidth(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks * self.size / self.series["smdist"].seconds

    def against(self, peer: str) -> float | None:
        other = self.series.get(peer)
        return other and other.seconds / self.series["smdist"].seconds

    def cpu_per_gb(self, peer: str) -> float:
        return self.series[peer].cpu_seconds / (self.size / 1e9)

    def cells(self) -> list[str]:
        return [
            self.layout,
            self.dtype,
            size_text(self.size),
            time_text(self.series["smdist"].seconds),
            f"{self.bus_bandwidth / 1e9:.3f}",
            f"{self.limit / self.series['smdist'].seconds:.0%}",
            time_text(self.series["gloo"].seconds),
            f"{self.against('gloo'):.2f}",
            *self._beside("openmpi"),
            *self._beside("bare"),
            time_text(self.series["call"].seconds) if "call" in self.series else "-",
            f"{self.cpu_per_gb('smdist'):.3g}",
            f"{self.cpu_per_gb('gloo'):.3g}",
            f"{self.cpu_per_gb('bare'):.3g}" if "bare" in self.series else "-",
            *(self._packets_per_mb(peer) for peer in ("smdist", "gloo", "bare")),
        ]

    def _packets_per_mb(self, peer: str) -> str:
        return f"{self.packets[peer] / (self.size / 1e6):.3g}" if peer in self.packets else "-"

    def _beside(self, peer: str) -> list[str]:
        if peer not in self.series:
            return ["-", "-"]
        return [time_text(self.series[peer].seconds), f"{self.against(peer):.2f}"]


def one_host(ranks: int, arguments: argparse.Namespace) -> Iterator[Row]:
    places = [Host(0)] * ranks
    with ExitStack() as stack:
        everyone = {
            peer: stack.enter_context(Ranks(peer, places)) for peer in ("smdist", "gloo", *FLOATS)
        }
        for dtype in arguments.dtypes:
            for size in arguments.sizes or ONE_HOST_SIZES:
                peers = _who_sum(everyone, dtype)
                yield _one_host(peers, ranks, dtype, size, arguments.rounds)


def _who_sum(everyone: dict[str, Ranks], dtype: str) -> dict[str, Ranks]:
    return {p: r for p, r in everyone.items() if p not in FLOATS or dtype == "float32"}


def _one_host(everyone: dict[str, Ranks], ranks: int, dtype: str, size: int, rounds: int) -> Row:
    for each in everyone.values():
        each.call(PREPARE, peer=each.peer, size=size, dtype=dtype)
    work = {peer: (each, MEASURE) for peer, each in everyone.items()}
    work["copy"] = (everyone["gloo"], "benchmarks.allreduce.work:copy")
    if "bare" in everyone:
        work["call"] = (everyone["bare"], "benchmarks.allreduce.work:call")
    series = interleave(work, rounds)
    return Row(f"{ranks}", ranks, dtype, size, series, series["copy"].seconds)


def hosts(count: int, arguments: argparse.Namespace) -> Iterator[Row]:
    network = EmulatedHosts(count, arguments.rate, arguments.flow_rate)
    with network as emulated, ExitStack() as stack:
        everyone = {
            peer: stack.enter_context(Ranks(peer, emulated.hosts))
            for peer in ("smdist", "gloo", "bare")
        }
        for dtype in arguments.dtypes:
            for size in arguments.sizes or HOSTS_SIZES:
                peers = _who_sum(everyone, dtype)
                yield _on_hosts(emulated, peers, dtype, size, arguments.rounds)


def _on_hosts(
    emulated: EmulatedHosts, everyone: dict[str, Ranks], dtype: str, size: int, rounds: int
) -> Row:
    for each in everyone.values():
        each.call(PREPARE, peer=each.peer, size=size, dtype=dtype)
    goodput = emulated.goodput()
    series = interleave({peer: (each, MEASURE) for peer, each in everyone.items()}, rounds)
    count = len(emulated.hosts)
    limit = 2 * (count - 1) / count * size / goodput
    packets = {peer: _packets(emulated, ranks) for peer, ranks in everyone.items()}
    return Row(f"{count} hosts", count, dtype, size, series, limit, packets)


def _packets(emulated: EmulatedHosts, ranks: Ranks, iterations: int = 4) -> float:
    """Return the packets of all hosts for one all-reduce; measure() runs one untimed, too."""
    before = emulated.packets()
    ranks.call(MEASURE, iterations=iterations)
    return (emulated.packets() - before) / (iterations + 1)


def main() -> None:
    arguments = _arguments()
    rows: list[Row] = []
    bare.build()
    for ranks in arguments.ranks:
        rows += _told(one_host(ranks, arguments))
    for count in arguments.hosts:
        rows += _told(hosts(count, arguments))
    text = table(COLUMNS, [row.cells() for row in rows])
    flows = f", each flow at most {arguments.flow_rate}" if arguments.flow_rate else ""
    print(f"\n{machine()}; emulated links of {arguments.rate}{flows}\n\n{text}")
    name = "allreduce-flows" if flows else "allreduce"
    save(name, text, [asdict(row) for row in rows], draw(rows))


def _told(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        print(" ".join(row.cells()), flush=True)
        yield row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("allreduce", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="on one host")
    parser.add_argument("--hosts", type=int, nargs="*", default=[2, 4, 8], help="one rank each")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes, instead of the usual ones")
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument(
        "--flow-rate", help="of each TCP flow on them, as 250mbit; none: the link's"
    )
    parser.add_argument("--rounds", type=int, default=11)
    return parser.parse_args()


if __name__ == "__main__":
    main()
