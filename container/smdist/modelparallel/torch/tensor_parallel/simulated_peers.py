# SPDX-License-Identifier: Apache-2.0
"""Ranks of tensor parallelism as threads of one process, which exchange tensors in its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_DEADLINE: Final = 120.0  # seconds that a rank waits for the others in one collective
_random = threading.Lock()  # held between the seed of a random operation and its end


class SimulatedRanks:
    """Ranks that meet in collectives; a rank that fails ends the wait of the others.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=_DEADLINE)
        self._given: list[Any] = [None] * size

    def peers(self, rank: int) -> SimulatedPeers:
        """Return the `Peers` of one rank."""
        return SimulatedPeers(self, rank)

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks; all ranks have to call this.

        Raises:
            threading.BrokenBarrierError: Another rank has failed, or calls no collective.
            ValueError: The tensors have different shapes.
        """
        self._given[rank] = tensor.detach().clone()
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        if any(each.shape != tensor.shape for each in found):
            raise ValueError("ranks have tensors of different shapes in one collective")
        return found

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Run a function on every rank, and return the results in the order of ranks.

        Args:
            work: Function that gets the number of a rank.

        Raises:
            Exception: Error of the first rank that failed by itself.
        """
        results: list[Any] = [None] * self.size
        errors: dict[int, BaseException] = {}

        def one(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:
                errors[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in sorted(
            errors.values(), key=lambda each: isinstance(each, threading.BrokenBarrierError)
        ):
            raise error
        return results


class SimulatedPeers:
    """One rank's view of simulated ranks, as `Peers`.

    Args:
        ranks: All ranks.
        rank: Number of this rank.
    """

    def __init__(self, ranks: SimulatedRanks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._ranks.size

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._rank

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks."""
        return torch.stack(self._ranks.exchange(self._rank, tensor)).sum(0)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of ranks."""
        return self._ranks.exchange(self._rank, tensor)

    def reduce_scatter(self, tensors: list[Tensor]) -> Tensor:
        """Return the sum over ranks of the tensor at this rank's number."""
        return self.all_reduce(torch.stack(tensors))[self._rank]


class NumberedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that seeds each random operation with its number, and records its size.

    Attributes:
        numbers: Name, and numbers of elements of inputs, of each random operation, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation and return its result; seed the generator first if it is random."""
        if not _draws(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        inputs = [each.numel() for each in args if isinstance(each, Tensor)]
        self.numbers.append((str(func), inputs))
        with _random:
            torch.default_generator.manual_seed(len(self.numbers))
            return func(*args, **(kwargs or {}))


def _draws(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return True if a call of an operation draws random numbers.

    Fused attention counts as random in torch, and is not with a rate of dropout of 0.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            rate = args[at] if at < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(rate)
    return True
