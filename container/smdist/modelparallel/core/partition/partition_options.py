# SPDX-License-Identifier: Apache-2.0
"""Options of a partition: number of stages, load to minimize, and memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cost import Link, StateBytes

MEMORY_WEIGHTS = {"memory": 0.8, "speed": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """Options of a partition, checked and with all defaults filled in.

    The load of a stage is the number whose largest value is minimized: its time, its memory, or
    both.

    Attributes:
        in_flight: Largest number of microbatches whose activations a stage keeps, by stage.
        rank_of: Rank of each stage.
        device_bytes: Bytes that a rank may hold; None means no limit.
        memory_weight: Weight of memory in a load, from 0 (time alone) to 1 (memory alone).
        seconds_unit: Seconds that count as 1 in a load, such as the whole model's time.
        bytes_unit: Bytes that count as 1 in a load, such as the whole model's memory.
        link: Link between stages.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
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
        """Total number of stages on all ranks."""
        return len(self.rank_of)

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the pipeline."""
        return max(self.rank_of) + 1

    @property
    def has_virtual_stages(self) -> bool:
        """True if at least one rank has several stages."""
        return self.num_ranks < self.num_stages

    def load(self, seconds: float, memory_bytes: float) -> float:
        """Return the load of a stage, the number to balance between stages.

        If `memory_weight` is 0, the load is `seconds`. Otherwise it is the weighted mean of the
        stage's time and memory, each as a fraction of the whole model's.
        """
        if not self.memory_weight:
            return seconds
        time, memory = seconds / self.seconds_unit, memory_bytes / self.bytes_unit
        return self.memory_weight * memory + (1 - self.memory_weight) * time

    def wire_seconds(self, num_messages: int, num_bytes: int) -> float:
        """Return the seconds to send `num_messages` messages of together `num_bytes` bytes."""
        link = self.link
        return num_messages * link.latency_seconds + num_bytes / link.bytes_per_second

    def by_rank(self, of_stages: Sequence[int]) -> tuple[int, ...]:
        """Return the sum over the stages of each rank, by rank.

        Args:
            of_stages: Number to add for each stage, such as its bytes.
        """
        sums = [0] * self.num_ranks
        for rank, amount in zip(self.rank_of, of_stages, strict=True):
            sums[rank] += amount
        return tuple(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """Options of a partition, as the caller passed them to `partition` and before any check."""

    num_stages: int
    device_bytes: int | None = None
    in_flight: Sequence[int] | None = None
    rank_of: Sequence[int] | None = None
    link: Link
    state: StateBytes
    memory_weight: float | None = None
    optimize: str | None = None

    def faults(self) -> Iterator[OptionError]:
        """Yield an error for each option that is wrong for every model."""
        if not _is_count(self.num_stages):
            yield OptionError(
                f"num_stages is {self.num_stages!r}",
                "a pipeline has at least one stage",
                "Pass an integer of at least 1",
                about="num_stages",
            )
        yield from _by_stage("in_flight", self.in_flight, self.num_stages, at_least=1)
        yield from _by_stage("rank_of", self.rank_of, self.num_stages, at_least=0)
        if self.rank_of is not None and set(self.rank_of) != set(range(len(set(self.rank_of)))):
            yield OptionError(
                f"rank_of is {list(self.rank_of)!r}",
                "ranks are numbered from 0 without gaps, and every rank has at least one stage",
                "Name every rank from 0 to the largest one at least once",
                about="rank_of",
            )
        if self.device_bytes is not None and not _is_count(self.device_bytes):
            yield OptionError(
                f"device_bytes is {self.device_bytes!r}",
                "it is the number of bytes that a rank may hold",
                "Pass an integer of at least 1, or None for no limit",
                about="device_bytes",
            )
        yield from _weight_faults(self.memory_weight, self.optimize)

    def options(self) -> PartitionOptions:
        """Return the options with all defaults filled in."""
        weight = self.memory_weight
        if weight is None:
            weight = MEMORY_WEIGHTS.get(self.optimize or "", 0.0)
        return PartitionOptions(
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
            "it is the weight of memory against time in a stage's load",
            "Pass a number from 0 (time alone) to 1 (memory alone)",
            about="memory_weight",
        )
    if optimize is not None and optimize not in MEMORY_WEIGHTS:
        yield OptionError(
            f"optimize is {optimize!r}",
            "it must be 'memory' or 'speed'",
            closest(str(optimize), MEMORY_WEIGHTS),
            about="optimize",
            kind="unknown",
        )


def _by_stage(
    name: str, numbers: Sequence[int] | None, num_stages: int, at_least: int
) -> Iterator[OptionError]:
    if numbers is None:
        return
    if len(numbers) != num_stages:
        yield OptionError(
            f"{name} has {len(numbers)} numbers",
            f"num_stages is {num_stages!r}, and each stage needs one number",
            "Pass one number for each stage",
            about=name,
        )
    wrong = [n for n in numbers if not isinstance(n, int) or isinstance(n, bool) or n < at_least]
    if wrong:
        yield OptionError(
            f"{name} contains {wrong[0]!r}",
            f"only integers of at least {at_least} are valid",
            f"Replace this value by an integer of at least {at_least}",
            about=name,
        )


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
