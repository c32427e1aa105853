# SPDX-License-Identifier: Apache-2.0
"""Command line of the soak: `make soak MINUTES=30`. Ctrl-C ends it with the figures so far.

Three ranks train models of random sizes with DDP, make and destroy groups, disagree, abort and
start again. Once a minute a job of its own loses a rank, and torchrun restarts it. Memory,
descriptors and threads of the ranks, and their entries of /dev/shm and among temporary files are
sampled; the command fails if one of them grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.torchrun_row import torchrun_restarts
from benchmarks.harness.report import machine
from benchmarks.soak.growth import LIMITS, Growth, growth

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/reliability.md"
_BEGIN, _END = "<!-- begin: written by make soak -->", "<!-- end: soak -->"
_SIZE = 3
_START_SECONDS, _SILENT_SECONDS, _END_SECONDS = 240.0, 120.0, 120.0
_RANK = "benchmarks.soak.rank"
_TORCHS_CACHE = "torchinductor_"
_MOUNT = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')


class Soak:
    """Ranks and jobs of one soak, and their samples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0
        self.restarts = self.failed_restarts = 0
        self._done = threading.Event()
        for each in ("tmp", "shm"):
            (folder / each).mkdir()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), **_TUNING}
        prefix = [*_MOUNT, str(folder / "shm")] if os.geteuid() == 0 else []
        self._ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, "-m", _RANK, str(folder), str(rank), str(_SIZE)],
                env=environ,
                cwd=_ROOT,
            )
            for rank in range(_SIZE)
        ]
        self._jobs = threading.Thread(target=self._restart_jobs)

    def run(self, seconds: float, report: Any) -> str:
        """Run for so many seconds; return what went wrong, or ""."""
        wrong = self._wait_for_samples()
        began = time.monotonic()
        self._jobs.start()
        next_minute = began + 60
        try:
            while not wrong and time.monotonic() < began + seconds:
                time.sleep(0.5)
                wrong = self._fault()
                if time.monotonic() >= next_minute:
                    next_minute += 60
                    report(time.monotonic() - began)
        except KeyboardInterrupt:
            print("interrupted: the figures so far", flush=True)
        self.seconds = time.monotonic() - began
        return wrong or self._end()

    def _wait_for_samples(self) -> str:
        end = time.monotonic() + _START_SECONDS
        while not all(self.samples(rank) for rank in range(_SIZE)):
            if wrong := self._ended():
                return wrong
            if time.monotonic() > end:
                return f"no sample of every rank within {_START_SECONDS:g} s"
            time.sleep(0.2)
        return ""

    def _ended(self) -> str:
        codes = [each.poll() for each in self._ranks]
        return "" if codes == [None] * _SIZE else f"ranks have ended: {codes}"

    def _fault(self) -> str:
        if wrong := self._ended():
            return wrong
        for rank in range(_SIZE):
            silent = time.monotonic() - self.samples(rank)[-1]["at"]
            if silent > _SILENT_SECONDS:
                for each in self._ranks:
                    each.send_signal(signal.SIGUSR1)  # prints the stacks
                time.sleep(1)
                return f"a hang: no sample of rank {rank} for {silent:.0f} s"
        return ""

    def _end(self) -> str:
        (self.folder / "stop").touch()
        self._done.set()
        end = time.monotonic() + _END_SECONDS
        for each in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, end - time.monotonic()))
        codes = [each.poll() for each in self._ranks]
        return "" if codes == [0] * _SIZE else f"the ranks' exit codes are {codes}"

    def close(self) -> None:
        """Kill what still runs."""
        self._done.set()
        for each in self._ranks:
            each.kill()
            each.wait()
        if self._jobs.ident is not None:
            self._jobs.join()

    def _restart_jobs(self) -> None:
        while not self._done.wait(20):
            try:
                seen = torchrun_restarts("torch")
            except subprocess.TimeoutExpired:
                self.failed_restarts += 1
                continue
            self.restarts += 1
            self.failed_restarts += seen.seconds is None or bool(seen.left)
            self._done.wait(40)

    def samples(self, rank: int) -> list[dict[str, Any]]:
        """Return the samples of a rank so far."""
        path = self.folder / f"rank-{rank}.jsonl"
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]
        return [json.loads(each) for each in whole.splitlines()]

    def growths(self) -> Iterator[tuple[int, str, Growth]]:
        """Yield the growth of each quantity of each rank."""
        for rank in range(_SIZE):
            samples = self.samples(rank)
            times = [each["at"] for each in samples]
            for name, limit in LIMITS.items():
                found = growth(times, [each[name] for each in samples], limit)
                if found is not None:
                    yield rank, name, found

    def left(self) -> list[str]:
        """Return files that the ranks have left among temporary files and in /dev/shm.

        Without root they share /dev/shm with other programs, and it is not looked at.
        """
        folders = [self.folder / name for name in ("tmp", "shm")]
        found = [each for folder in folders for each in folder.iterdir()]
        return sorted(str(each) for each in found if not each.name.startswith(_TORCHS_CACHE))


# No start has to measure: a soak has hundreds of starts.
_TUNING = {
    "SMDIST_ONE_SHOT_BYTES": "65536",
    "SMDIST_SINGLE_OWNER_BYTES": "262144",
    "SMDIST_CHUNK_BYTES": "262144",
    "SMDIST_LANES": "1",
    "SMDIST_ARRIVING_BYTES": "229376",
}


def _lines(soak: Soak, seconds: float, left: list[str]) -> Iterator[str]:
    """Yield the figures as Markdown."""
    kinds = ("training", "group", "disagreement", "abort", "new world")
    counts = {**dict.fromkeys(kinds, 0), **soak.samples(0)[-1]}
    yield (
        f"{machine()}; {seconds / 60:.1f} minutes, {_SIZE} ranks. {counts['training']:,} trainings"
        f" of three steps, {counts['group']:,} groups, {counts['disagreement']:,} disagreements,"
        f" {counts['abort']:,} aborts and {counts['new world']:,} new worlds of the same processes;"
        f" {soak.restarts} other jobs lost a rank and were restarted,"
        f" {soak.failed_restarts} of them in vain."
    )
    yield ""
    yield "| held by a rank | at the end of the warm-up | at the end | growth |"
    yield "|---|---|---|---|"
    for rank, name, found in soak.growths():
        grown = found.last - found.first
        verdict = " **grows**" if found.is_too_much else ""
        if name == "memory":
            mib = [value / (1 << 20) for value in (found.first, found.last, grown)]
            cells = [f"{mib[0]:.1f} MiB", f"{mib[1]:.1f} MiB", f"{mib[2]:+.1f} MiB{verdict}"]
        else:
            cells = [f"{found.first:.1f}", f"{found.last:.1f}", f"{grown:+.1f}{verdict}"]
        yield f"| {name} of rank {rank} | {' | '.join(cells)} |"
    yield f"| entries of `/dev/shm` and `/tmp` | 0 | {len(left)} | {len(left):+d} |"


def main() -> None:
    """Run the soak of the command line; exit with 1 if something grows or goes wrong."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--no-page", action="store_true", help="leave docs/reliability.md as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder))

        def report(seconds: float) -> None:
            print(f"\nafter {seconds / 60:.0f} minutes", flush=True)
            print("\n".join(_lines(soak, seconds, soak.left())), flush=True)

        try:
            wrong = soak.run(options.minutes * 60, report)
        finally:
            soak.close()
            left = soak.left()
        grows = [f"{n} of rank {r}" for r, n, each in soak.growths() if each.is_too_much]
        text = "\n".join(_lines(soak, soak.seconds, left)) if soak.samples(0) else ""
    print(f"\n{text}")
    if text and not options.no_page:
        _write(text)
    faults = [*([wrong] if wrong else []), *(f"{each} grows" for each in grows), *left]
    faults += [f"{soak.failed_restarts} restarts in vain"] if soak.failed_restarts else []
    print("\n".join(faults) or "nothing grows")
    sys.exit(1 if faults else 0)


def _write(text: str) -> None:
    page = _PAGE.read_text()
    before, rest = page.split(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
