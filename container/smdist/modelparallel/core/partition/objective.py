# SPDX-License-Identifier: Apache-2.0
"""Options of a partition: number of stages, definition of load, and memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cost import Link, StateBytes

MEMORY_WEIGHTS = {"memory": 0.8, "speed": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Complete options of a partition.

    Attributes:
        in_flight: Largest number of microbatches that each stage holds, by stage.
        rank_of: Rank of each stage, by stage.
        device_bytes: Bytes that a rank may hold; None means no limit.
        memory_weight: Weight of memory in a load, against time: 0 is time alone.
        seconds_unit: Divisor of time in a load: the whole model's time if memory has a weight.
        bytes_unit: Divisor of memory in a load.
        link: Link between stages.
        state: Memory of a trained parameter.
    """

    in_flight: tuple[int, ...]
    rank_of: tuple[int, ...]
    device_bytes: int | None = None
    memory_weight: float = 0.0
    seconds_unit: float = 1.0
    bytes_unit: float = 1.0
    link: Link = field(default_factory=Link)
    state: StateBytes = field(default_factory=StateBytes)

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.rank_of)

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the stages are on."""
        return max(self.rank_of) + 1

    @property
    def shares_ranks(self) -> bool:
        """True if a rank has several stages."""
        return self.num_ranks < self.num_stages

    def load(self, seconds: float, memory_bytes: float) -> float:
        """Return the load of a stage: its time, or its weighted sum of memory and time."""
        if not self.memory_weight:
            return seconds
        time, memory = seconds / self.seconds_unit, memory_bytes / self.bytes_unit
        return self.memory_weight * memory + (1 - self.memory_weight) * time

    def wire_seconds(self, num_messages: int, num_bytes: int) -> float:
        """Return the seconds that `num_messages` messages with `num_bytes` bytes in all take."""
        link = self.link
        return num_messages * link.latency_seconds + num_bytes / link.bytes_per_second

    def by_rank(self, of_stages: Sequence[int]) -> tuple[int, ...]:
        """Return the sums over the stages of each rank."""
        sums = [0] * self.num_ranks
        for rank, amount in zip(self.rank_of, of_stages, strict=True):
            sums[rank] += amount
        return tuple(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Options of a partition as they were passed; `partition` documents each of them."""

    num_stages: int
    device_bytes: int | None = None
    in_flight: Sequence[int] | None = None
    rank_of: Sequence[int] | None = None
    link: Link
    state: StateBytes
    memory_weight: float | None = None
    optimize: str | None = None

    def faults(self) -> Iterator[OptionError]:
        """Return all faults of the numbers themselves, independent of the model."""
        if not _is_count(self.num_stages):
            yield OptionError(
                f"num_stages is {self.num_stages!r}",
                "a pipeline has stages",
                "Pass an integer of 1 or more",
                about="num_stages",
            )
        yield from _by_stage("in_flight", self.in_flight, self.num_stages, at_least=1)
        yield from _by_stage("rank_of", self.rank_of, self.num_stages, at_least=0)
        if self.rank_of is not None and set(self.rank_of) != set(range(len(set(self.rank_of)))):
            yield OptionError(
                f"rank_of is {list(self.rank_of)!r}",
                "ranks are numbered from 0, and each has a stage",
                "Leave no rank out",
                about="rank_of",
            )
        if self.device_bytes is not None and not _is_count(self.device_bytes):
            yield OptionError(
                f"device_bytes is {self.device_bytes!r}",
                "a rank needs memory",
                "Pass a positive whole number of bytes, or None for no limit",
                about="device_bytes",
            )
        yield from _weight_faults(self.memory_weight, self.optimize)

    def aim(self) -> Aim:
        """Return the complete options, with defaults filled in."""
        weight = self.memory_weight
        if weight is None:
            weight = MEMORY_WEIGHTS.get(self.optimize or "", 0.0)
        return Aim(
            in_flight=tuple(self.in_flight or [1] * self.num_stages),
            rank_of=tuple(self.rank_of or range(self.num_stages)),
            device_bytes=self.device_bytes,
            memory_weight=weight,
            link=self.link,
            state=self.state,
        )


def _weight_faults(memory_weight: float | None, optimize: str | None) -> Iterator[OptionError]:
    if memory_weight is not None and not (isfinite(memory_weight) and 0 <= memory_weight <= 1):
        yield OptionError(
            f"memory_weight is {memory_weight!r}",
            "it is memory's part of the load",
            "Pass a number from 0 (time alone) to 1 (memory alone)",
            about="memory_weight",
        )
    if optimize is not None and optimize not in MEMORY_WEIGHTS:
        yield OptionError(
            f"optimize is {optimize!r}",
            "it stands for a memory_weight",
            closest(str(optimize), MEMORY_WEIGHTS),
            about="optimize",
        )


def _by_stage(
    name: str, numbers: Sequence[int] | None, num_stages: int, at_least: int
) -> Iterator[OptionError]:
    if numbers is None:
        return
    if len(numbers) != num_stages:
        yield OptionError(
            f"{name} has {len(numbers)} numbers",
            f"there are {num_stages!r} stages",
            "Pass one number for each stage",
            about=name,
        )
    wrong = [n for n in numbers if not isinstance(n, int) or isinstance(n, bool) or n < at_least]
    if wrong:
        yield OptionError(
            f"{name} has {wrong[0]!r}",
            "it counts",
            f"Pass integers of {at_least} or more",
            about=name,
        )


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
