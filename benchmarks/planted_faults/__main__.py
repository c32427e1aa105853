# SPDX-License-Identifier: Apache-2.0
"""Command line of the planted faults, with the commands draw, locate, judge and table."""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
from pathlib import Path

from benchmarks.planted_faults.drawing import draw
from benchmarks.planted_faults.faults import SEED, FaultList
from benchmarks.planted_faults.judging import Judge
from benchmarks.planted_faults.locating import locate
from benchmarks.planted_faults.report import table
from benchmarks.planted_faults.workplace import Workplace

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def main() -> None:
    """Run the command of the command line."""
    # exit normally, so that child processes are ended, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _parser().parse_args()
    options.command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/planted_faults/run", description=__doc__)
    parser.set_defaults(scratch=ROOT / "build/planted_faults")
    commands = parser.add_subparsers(required=True)

    def command(name: str, run, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(command=run)
        one.add_argument("--tree", type=Path, default=ROOT, help="a checkout; it is only read")
        one.add_argument("--faults", type=Path, default=HERE / "faults.json")
        one.add_argument("--scratch", type=Path, default=ROOT / "build/planted_faults")
        return one

    command("draw", _draw, "draw 60 faults of a tree by the fixed seed and write --faults")
    one = command("locate", _locate, "find the faults of --faults in another tree, write --out")
    one.add_argument("--out", type=Path, required=True)
    one = command("judge", _judge, "plant each fault in a copy of the tree and run tests")
    one.add_argument("--only", type=lambda text: text.split(","), help="such as S01,C07")
    one.add_argument("--whole", action="store_true", help="run all of make test where nearest miss")
    one.add_argument("--seconds-nearest", type=float, default=1800)
    one.add_argument("--seconds-whole", type=float, default=5400)
    one.add_argument("--results", type=Path, help="JSON lines; what they have is not redone")
    one = command("table", _table, "print the verdicts as Markdown")
    one.add_argument("--results", type=Path)
    return parser


def _workplace(options: argparse.Namespace) -> Workplace:
    key = hashlib.sha256(bytes(options.tree.resolve())).hexdigest()[:8]
    return Workplace(options.tree, options.scratch / f"{options.tree.resolve().name}-{key}")


def _results(options: argparse.Namespace) -> Path:
    return options.results or options.scratch / f"{options.faults.stem}.jsonl"


def _draw(options: argparse.Namespace) -> None:
    workplace = _workplace(options)
    draw(workplace, SEED, workplace.root / "build/draw.log").save(options.faults)


def _locate(options: argparse.Namespace) -> None:
    workplace = _workplace(options)
    faults = FaultList.load(options.faults)
    locate(workplace, faults, workplace.root / "build/locate.log").save(options.out)


def _judge(options: argparse.Namespace) -> None:
    judge = Judge(
        workplace=_workplace(options),
        results=_results(options),
        whole=options.whole,
        seconds_nearest=options.seconds_nearest,
        seconds_whole=options.seconds_whole,
    )
    faults = FaultList.load(options.faults)
    judge.all_of([each for each in faults.faults if not options.only or each.id in options.only])
    print(table(faults, _results(options)))


def _table(options: argparse.Namespace) -> None:
    print(table(FaultList.load(options.faults), _results(options)))


main()
