# SPDX-License-Identifier: Apache-2.0
"""What a partition is asked for: how many stages, what counts as load, and what must fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cost import Link, StateBytes

MEMORY_WEIGHTS = {"memory": 0.8, "speed": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The options of a partition, complete.

    Attributes:
        in_flight: Microbatches that each stage holds at most, by stage.
        rank_of: The rank of each stage, by stage.
        device_bytes: What a rank may hold; None where nothing limits it.
        memory_weight: How much memory counts in a load, against time: 0 is time alone.
        seconds_unit: What time is divided by in a load: with a weight, that of the whole model.
        bytes_unit: What memory is divided by.
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
        """How many stages are wanted."""
        return len(self.rank_of)

    @property
    def num_ranks(self) -> int:
        """How many ranks they are on."""
        return max(self.rank_of) + 1

    @property
    def shares_ranks(self) -> bool:
        """Whether a rank has several stages."""
        return self.num_ranks < self.num_stages

    def load(self, seconds: float, memory_bytes: float) -> float:
        """What a stage adds to the bottleneck: its time, or its mix of memory and time."""
        if not self.memory_weight:
            return seconds
        time, memory = seconds / self.seconds_unit, memory_bytes / self.bytes_unit
        return self.memory_weight * memory + (1 - self.memory_weight) * time

    def wire_seconds(self, num_messages: int, num_bytes: int) -> float:
        """How long so many messages of so many bytes in all take."""
        link = self.link
        return num_messages * link.latency_seconds + num_bytes / link.bytes_per_second

    def by_rank(self, of_stages: Sequence[int]) -> tuple[int, ...]:
        """Sums over the stages of each rank."""
        sums = [0] * self.num_ranks
        for rank, amount in zip(self.rank_of, of_stages, strict=True):
            sums[rank] += amount
        return tuple(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The options of a partition as they were passed; `partition` says what each means."""

    num_stages: int
    device_bytes: int | None = None
    in_flight: Sequence[int] | None = None
    rank_of: Sequence[int] | None = None
    link: Link
    state: StateBytes
    memory_weight: float | None = None
    optimize: str | None = None

    def faults(self) -> Iterator[OptionError]:
        """Every fault of the numbers themselves, whatever the model."""
        if not _is_count(self.num_stages):
            yield OptionError(
                f"num_stages is {self.num_stages!r}",
                "a pipeline has stages",
                "Pass an integer of 1 or more",
            )
        yield from _by_stage("in_flight", self.in_flight, self.num_stages, at_least=1)
        yield from _by_stage("rank_of", self.rank_of, self.num_stages, at_least=0)
        if self.rank_of is not None and set(self.rank_of) != set(range(len(set(self.rank_of)))):
            yield OptionError(
                f"rank_of is {list(self.rank_of)!r}",
                "ranks are numbered from 0, and each has a stage",
                "Leave no rank out",
            )
        if self.device_bytes is not None and not _is_count(self.device_bytes):
            yield OptionError(
                f"device_bytes is {self.device_bytes!r}",
                "a rank needs memory",
                "Pass a positive whole number of bytes, or None for no limit",
            )
        yield from _weight_faults(self.memory_weight, self.optimize)

    def aim(self) -> Aim:
        """What is wanted, with all defaults."""
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
        )
    if optimize is not None and optimize not in MEMORY_WEIGHTS:
        yield OptionError(
            f"optimize is {optimize!r}",
            "it stands for a memory_weight",
            closest(str(optimize), MEMORY_WEIGHTS),
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
        )
    wrong = [n for n in numbers if not isinstance(n, int) or isinstance(n, bool) or n < at_least]
    if wrong:
        yield OptionError(
            f"{name} has {wrong[0]!r}", "it counts", f"Pass integers of {at_least} or more"
        )


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
