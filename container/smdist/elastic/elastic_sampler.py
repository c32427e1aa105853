# SPDX-License-Identifier: Apache-2.0
"""Sampler that goes on, in a smaller world, with the samples that no rank has processed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from sagemaker_dist.errors import require


class ElasticSampler:
    """Order in which all ranks together take the samples of an epoch, each sample once.

    Every rank has the same order of an epoch: a permutation from `seed` and the epoch's number. Of
    the samples that are not processed, rank r of n takes every n-th, beginning with the r-th. The
    position in the order is part of the state that `TorchState` and `KerasState` commit, so the
    ranks that are left after a loss divide the rest among themselves.

    If the rest cannot be divided equally, the first samples of the epoch are taken once more at its
    end, fewer than there are ranks; or, with `drop_last`, the last samples are left out.

    It is a sampler for torch's DataLoader, and an iterable of indices for tf.data and others.

    Args:
        data: The dataset, or its length.
        shuffle: False takes the samples in their own order. Default True.
        seed: Seed of the permutations, the same on all ranks. Default 0.
        drop_last: True leaves out the samples of an epoch that cannot be divided equally. Default
            False.

    Raises:
        OptionError: The dataset is empty.
    """

    def __init__(
        self, data: Sized | int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.length = data if isinstance(data, int) else len(data)
        require(
            self.length > 0,
            what=f"the length of the dataset is {self.length}",
            why="an epoch has at least one sample",
            hint="Check the path of the data",
            about="data",
        )
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.num_processed = 0
        self.rank, self.size = 0, 1

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; nothing changes if it is the current epoch.

        So the same call at the head of the loop over epochs begins an epoch, and goes on with it
        after a loss.
        """
        if epoch != self.epoch:
            self.epoch, self.num_processed = epoch, 0

    def record(self, num_samples: int) -> None:
        """Take note that this rank, like every other, has processed `num_samples` more samples.

        Call it after each step, before the commit, with the size of this rank's batch.
        """
        self.num_processed = min(self.num_processed + num_samples * self.size, self.length)

    def set_world(self, rank: int, size: int) -> None:
        """Set this rank's number and the number of ranks; `run` calls it in every generation."""
        self.rank, self.size = rank, size

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this rank that are not processed, for the rest of the epoch."""
        order = self._order()
        rest = order[self.num_processed :]
        if self.drop_last:
            rest = rest[: len(rest) - len(rest) % self.size]
        while rest and len(rest) % self.size:
            rest = rest + order[: self.size - len(rest) % self.size]
        return iter(rest[self.rank :: self.size])

    def __len__(self) -> int:
        """Return the number of samples of this rank for the rest of the epoch."""
        rest = self.length - self.num_processed
        return rest // self.size if self.drop_last else -(-rest // self.size)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of samples that all ranks together have processed."""
        return {"epoch": self.epoch, "num_processed": self.num_processed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the epoch and the position of a result of `state_dict`."""
        self.epoch, self.num_processed = int(state["epoch"]), int(state["num_processed"])

    def _order(self) -> list[int]:
        order = list(range(self.length))
        if self.shuffle:
            order_of_epoch = random.Random(f"{self.seed}/{self.epoch}")  # noqa: S311  no secret
            order_of_epoch.shuffle(order)
        return order
