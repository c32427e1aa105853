# SPDX-License-Identifier: Apache-2.0
"""Process group of torch in an elastic job: torn down and made again in each generation."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from sagemaker_dist.errors import require
from smdist.dataparallel.torch.backend import NAME
from smdist.elastic.agent_client import ElasticStore, Generation


class TorchWorld:
    """torch's default process group, on the backend smdist."""

    def size(self) -> int:
        """Return the number of ranks.

        Raises:
            OptionError: The process group is not initialized, or has another backend.
        """
        require(
            dist.is_initialized() and dist.get_backend() == NAME,
            what="smdist.elastic.run was called without a process group of the backend smdist",
            why="only this backend reports which rank was lost",
            hint='Call torch.distributed.init_process_group("smdist") first',
            about="run",
            kind="too_early",
        )
        return dist.get_world_size()

    def rank(self) -> int:
        """Return this rank's number."""
        return dist.get_rank()

    def leave(self) -> None:
        """Destroy the process group, if there is one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def enter(self, generation: Generation, store: ElasticStore) -> None:
        """Make the process group of a generation.

        Raises:
            Exception: The ranks could not connect. A later call may succeed.
        """
        hook = sys.excepthook
        try:
            dist.init_process_group(
                NAME,
                store=TorchGenerationStore(store),
                rank=generation.rank,
                world_size=generation.size,
            )
        except Exception:
            _forget_groups()
            raise
        sys.excepthook = hook  # torch adds "[rank0]: " to each traceback anew


def _forget_groups() -> None:
    """Let torch number its process groups from 0 again, as `destroy_process_group` does.

    The number of a group begins its keys in the store. A start that fails takes a number and gives
    none back, so this rank would look for the keys of a next start under other names than a rank
    whose start has succeeded. torch has no public function for it.
    """
    dist.distributed_c10d._world.group_count = 0


class TorchGenerationStore(Store):
    """Store of torch.distributed in which the ranks of one generation keep their keys.

    torch calls its methods, with keys that it has prefixed.
    """

    def __init__(self, store: ElasticStore) -> None:
        super().__init__()
        self._elastic = store

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        self._elastic.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key, at most the timeout of this store, and return its value.

        Raises:
            DistStoreError: No rank has set the key in time.
        """
        return self._get(key, self._seconds(None))

    def add(self, key: str, value: int) -> int:
        """Add `value` to the counter under this key; return the new value."""
        return self._elastic.add(key, value)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return True if it was there."""
        was_there = self._elastic.has(key)
        self._elastic.delete(key)
        return was_there

    def check(self, keys: list[str]) -> bool:
        """Return True if all these keys have values."""
        return all(map(self._elastic.has, keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys have values.

        Raises:
            DistStoreError: A key has no value after the timeout.
        """
        seconds = self._seconds(timeout)
        for key in keys:
            self._get(key, seconds)

    def _seconds(self, timeout: timedelta | None) -> float:
        of_store: timedelta = self.timeout  # type: ignore[attr-defined]  # not in torch's stub
        return (timeout or of_store).total_seconds()

    def _get(self, key: str, seconds: float) -> bytes:
        try:
            return self._elastic.get(key, seconds)
        except TimeoutError as error:
            raise dist.DistStoreError(str(error)) from error
