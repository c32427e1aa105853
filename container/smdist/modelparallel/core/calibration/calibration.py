# SPDX-License-Identifier: Apache-2.0
"""Measured speeds of one machine, and what plans take from them.

All speeds are those that were reached, not peaks of a data sheet: FLOP/s, bytes per second, and
seconds of a message. Times of messages are medians of several repetitions; those of products and
copies are of the fastest repetition, since other processes of the machine only add time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from math import isfinite
from typing import Any, Final

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.quantities import shown

_BUSY: Final = 0.1  # part of the processors' time
_UNSTEADY: Final = 0.25  # relative difference of repetitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Machine that was measured; names of hosts and users are not kept.

    Attributes:
        processor: Model of the processor, such as "AMD EPYC 7R32".
        num_cores: Number of processor cores that the process may use.
        memory_bytes: Bytes of memory of the host.
        device: Kind of device that computed: "cpu" or "cuda".
        device_name: Name of the device, such as "NVIDIA A100-SXM4-40GB"; the processor for "cpu".
        num_devices: Number of such devices; 1 for "cpu".
        num_threads: Number of threads of a process that computes on "cpu".
    """

    processor: str
    num_cores: int
    memory_bytes: int
    device: str
    device_name: str
    num_devices: int
    num_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpeed:
    """Speed of the product of two square matrices.

    Attributes:
        dtype: Type of the elements: "float32", "bfloat16" or "float16".
        size: Number of rows, which is the number of columns.
        flops_per_second: 2 size^3 operations divided by the seconds of the fastest product.
    """

    dtype: str
    size: int
    flops_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceTime:
    """Time of an all-reduce of this project's engine between processes of the machine.

    Attributes:
        num_ranks: Number of processes.
        num_bytes: Bytes of the value of each process.
        seconds: Median seconds of the call on the slowest process.
    """

    num_ranks: int
    num_bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Bytes that each process sends, 2 (n - 1) / n of its value, divided by the seconds."""
        return 2 * (self.num_ranks - 1) / self.num_ranks * self.num_bytes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTime:
    """Time of a message from one process to another on the machine.

    Attributes:
        num_bytes: Bytes of the message.
        seconds: Half of the median seconds of the message and an answer of the same size.
    """

    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSpeed:
    """Speed of files in a folder.

    Attributes:
        folder: Kind of folder: "disk" for the temporary folder, "channel" for that of the option.
        num_bytes: Bytes of the file that was written, or read for a channel.
        write_bytes_per_second: Speed of writing with fsync; None for a channel, which is not
            written to.
        read_bytes_per_second: Speed of reading, with the file dropped from the cache of pages
            before where Linux allows it.
    """

    folder: str
    num_bytes: int
    write_bytes_per_second: float | None
    read_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Other programs, or other virtual machines, beside a measurement.

    Attributes:
        busy_share: Part of the processors' time, from 0 to 1, that they took.
        repeat_spread: By how much the median repetition of a product of matrices was slower than
            the fastest one, relative to it; the median of all sizes.

    Raises:
        OptionError: A number is out of its range.
    """

    busy_share: float
    repeat_spread: float

    def __post_init__(self) -> None:
        for name, most in (("busy_share", 1.0), ("repeat_spread", float("inf"))):
            value = getattr(self, name)
            require(
                0 <= value <= most,
                what=f"{name} is {shown(value)}",
                why=f"it is a number from 0 to {most:g}",
                hint="Run sagemaker-dist calibrate again",
                about=name,
            )

    @property
    def is_large(self) -> bool:
        """True if the measured speeds are not those of a machine of its own."""
        return self.busy_share > _BUSY or self.repeat_spread > _UNSTEADY

    @property
    def uncertainty(self) -> float:
        """Part of the measured seconds that may be due to others; 0 if they disturbed little."""
        if not self.is_large:
            return 0.0
        return max(self.busy_share, 1 - 1 / (1 + self.repeat_spread))

    def __str__(self) -> str:
        return (
            f"other programs took {100 * self.busy_share:.0f} % of the processors' time during the"
            f" measurement, and repetitions differed by {100 * self.repeat_spread:.0f} %"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured speeds of one machine.

    Attributes:
        date: Day of the measurement, such as "2026-11-27".
        machine: Machine that was measured.
        versions: Version of each program by name, such as {"torch": "2.13.0"}.
        products: Speed of products of matrices by dtype and size.
        memory_bytes_per_second: Bytes read and written per second while a large array is copied.
        all_reduce: Times of all-reduces; empty if the machine has one process only.
        messages: Times of messages between two processes, by size.
        folders: Speed of files.
        disturbance: Other programs that ran meanwhile; None in files of earlier releases.

    Raises:
        OptionError: The date is not a day, there is no product or no message, or a number is not
            above 0; all faults are reported at once.
    """

    date: str
    machine: MachineFacts
    versions: Mapping[str, str]
    products: tuple[ProductSpeed, ...]
    memory_bytes_per_second: float
    all_reduce: tuple[AllReduceTime, ...]
    messages: tuple[MessageTime, ...]
    folders: tuple[FolderSpeed, ...]
    disturbance: Disturbance | None = None

    def __post_init__(self) -> None:
        raise_all(self._faults())

    def _faults(self) -> Iterator[OptionError]:
        try:
            date.fromisoformat(self.date)
        except ValueError:
            what, why = f"date is {shown(self.date)}", "it is not a day of the calendar"
            yield OptionError(what, why, "Write a day such as 2026-11-27", about="date")
        for name, least in (("products", 1), ("messages", 2)):
            sizes = {each.size if name == "products" else each.num_bytes
                     for each in getattr(self, name)}  # fmt: skip
            if len(sizes) < least:
                what, why = f"{name} has {len(sizes)} sizes", f"a plan needs at least {least}"
                hint = "Run sagemaker-dist calibrate again"
                yield OptionError(what, why, hint, about=name, kind="missing")
        yield from _number_faults(self, ())
        for at, each in enumerate(self.all_reduce):
            if each.num_ranks == 1:
                about = ("all_reduce", at, "num_ranks")
                what, why = "all_reduce has an entry with 1 rank", "one rank sends nothing"
                yield OptionError(what, why, "Remove the entry", about=about)

    def flops_per_second(self, dtype: str) -> float | None:
        """Return the fastest measured product of a dtype in FLOP/s; None if none was measured."""
        return max((each.flops_per_second for each in self.of_dtype(dtype)), default=None)

    def of_dtype(self, dtype: str) -> tuple[ProductSpeed, ...]:
        """Return the speeds of products of a dtype, the smallest size first."""
        found = [each for each in self.products if each.dtype == dtype]
        return tuple(sorted(found, key=lambda each: each.size))

    @property
    def working_dtype(self) -> str:
        """Dtype in which models are assumed to compute: 16 bits on GPUs, 32 bits on processors.

        It is "bfloat16" or, where the file lacks it, the dtype of the fastest product.
        """
        usual = "float32" if self.machine.device == "cpu" else "bfloat16"
        if self.of_dtype(usual):
            return usual
        return max(self.products, key=lambda each: each.flops_per_second).dtype

    def link(self) -> Link:
        """Return the link between two processes: latency and bandwidth, fitted to the messages.

        The latency is the time of the smallest message. The bandwidth is the bytes of the largest
        message divided by its remaining seconds.
        """
        small = min(self.messages, key=lambda each: each.num_bytes)
        large = max(self.messages, key=lambda each: each.num_bytes)
        rest = max(large.seconds - small.seconds, large.seconds / 1e3)
        return Link(latency_seconds=small.seconds, bytes_per_second=large.num_bytes / rest)

    def applied_to(self, cluster: Cluster) -> Cluster:
        """Return a cluster whose devices have the measured speeds.

        Without GPUs, the ranks of a host share its cores: each has the speed of its part of the
        threads that were measured. Links inside a host have the measured speed, too; messages
        between GPUs are not measured. Memory, numbers of hosts and ranks, and the link between
        hosts are not changed.

        Args:
            cluster: Cluster of machines like the measured one.
        """
        flops = self.flops_per_second(self.working_dtype)
        assert flops is not None  # the working dtype is one that was measured
        part = self._part_of_rank(cluster.ranks_per_host)
        device = replace(
            cluster.device,
            flops_per_second=part * flops,
            bytes_per_second=part * self.memory_bytes_per_second,
        )
        inside = self.link() if self.machine.device == "cpu" else cluster.inside
        return replace(cluster, device=device, inside=inside)

    def _part_of_rank(self, ranks_per_host: int) -> float:
        """Return the part of the measured speeds that each of so many ranks of a host has."""
        machine = self.machine
        if machine.device != "cpu":
            return 1.0
        threads = max(1, machine.num_cores // ranks_per_host)
        return min(1.0, threads / machine.num_threads)

    def __str__(self) -> str:
        return f"calibration of {self.machine.device_name} on {self.date}"


def _number_faults(value: Any, path: tuple[str | int, ...]) -> Iterator[OptionError]:
    """Yield an error for each number inside a dataclass that is not finite and above 0."""
    for name in value.__dataclass_fields__:
        found = getattr(value, name)
        about = (*path, name)
        if isinstance(found, tuple):
            for at, each in enumerate(found):
                yield from _number_faults(each, (*about, at))
        elif isinstance(found, MachineFacts):
            yield from _number_faults(found, about)
        elif isinstance(found, int | float) and not (isfinite(found) and found > 0):
            what = f"{'.'.join(map(str, about))} is {shown(found)}"
            why = "sizes, counts, speeds and times are above 0"
            yield OptionError(what, why, "Run sagemaker-dist calibrate again", about=about)
