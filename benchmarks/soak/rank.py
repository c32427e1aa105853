# SPDX-License-Identifier: Apache-2.0
"""One rank of the soak: cycles of training, groups, disagreements, aborts and new worlds.

    python -m benchmarks.soak.rank FOLDER RANK SIZE

Every rank draws the same cycles, because the number of a cycle is the seed. Rank 0 ends all when
FOLDER/stop exists. Samples are lines of JSON in FOLDER/rank-N.jsonl.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smdist.dataparallel.torch  # noqa: F401  registers the backend
from smdist.dataparallel.rendezvous import engine_shutdown

_SAMPLE_SECONDS = 2.0
_MOST_WIDTH = 700
_KINDS = ("training", "group", "disagreement", "abort", "new world")
_WEIGHTS = (8, 8, 8, 1, 1)


class SoakRank:
    """One rank, with a new process group after each abort and for each new world."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.counts: Counter[str] = Counter()
        self._worlds = 0
        self._samples = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        self._sampled = 0.0

    def run(self) -> None:
        """Run cycles until rank 0 sees the file that ends them."""
        self._start()
        cycle = 0
        while True:
            kind = random.Random(cycle).choices(_KINDS, _WEIGHTS)[0]
            try:
                if self._must_stop():
                    break
            except dist.DistBackendError:
                if kind != "abort":  # the rank that aborts may be in its cycle already
                    raise
            getattr(self, kind.replace(" ", "_"))(random.Random(cycle + 1_000_003))
            self.counts[kind] += 1
            self._sample()
            cycle += 1
        dist.destroy_process_group()

    def _start(self) -> None:
        store = dist.FileStore(str(self.folder / f"store-{self._worlds}"), self.size)
        self._worlds += 1
        dist.init_process_group("smdist", store=store, rank=self.rank, world_size=self.size)
        if self.rank == 0 and self._worlds > 1:  # all have opened the new one
            (self.folder / f"store-{self._worlds - 2}").unlink(missing_ok=True)

    def _must_stop(self) -> bool:
        flag = torch.tensor([float(self.rank == 0 and (self.folder / "stop").exists())])
        dist.all_reduce(flag)
        return bool(flag[0])

    def training(self, draw: random.Random) -> None:
        """Train a model of random sizes for three steps."""
        widths = [draw.randrange(1, _MOST_WIDTH) for _ in range(draw.randrange(2, 6))]
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=draw.choice([1, 25]))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, widths[0])).square().mean().backward()
            optimizer.step()

    def group(self, draw: random.Random) -> None:
        """Make a group of some ranks, sum in it, and destroy it."""
        members = sorted(draw.sample(range(self.size), draw.randrange(1, self.size + 1)))
        group = dist.new_group(members)
        if self.rank in members:
            for _ in range(3):
                dist.all_reduce(torch.ones(draw.randrange(1, 1 << 18)), group=group)
            dist.destroy_process_group(group)

    def disagreement(self, draw: random.Random) -> None:
        """Let one rank pass another shape; every rank gets an error."""
        length, other = draw.randrange(1, 1 << 16), draw.randrange(self.size)
        try:
            dist.all_reduce(torch.ones(length + (self.rank == other)))
        except ValueError:
            return
        raise AssertionError("ranks disagreed, and no error was raised")

    def abort(self, draw: random.Random) -> None:
        """Let one rank end the engines of all; then start again."""
        if self.rank == draw.randrange(self.size):
            engine_shutdown.abort("a fault of the soak")
        try:
            while True:
                dist.all_reduce(torch.ones(1000))
        except dist.DistBackendError:
            dist.destroy_process_group()
        self._start()

    def new_world(self, draw: random.Random) -> None:
        """Leave in order, and start again."""
        del draw
        dist.barrier()
        dist.destroy_process_group()
        self._start()

    def _sample(self) -> None:
        if time.monotonic() < self._sampled + _SAMPLE_SECONDS:
            return
        self._sampled = time.monotonic()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that nothing uses is not the process's
        self._samples.write(json.dumps({"at": time.monotonic(), **_held(), **self.counts}) + "\n")


def _held() -> dict[str, Any]:
    """Return what this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  a count
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
    }


def main() -> None:
    """Run the rank of the command line."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the command, which ends the ranks
    torch.set_num_threads(1)
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    SoakRank(folder, rank, size).run()


if __name__ == "__main__":
    main()
