# SPDX-License-Identifier: Apache-2.0
"""Allowed values of the options of `DataParallel`, and parsing of sizes such as "16GiB".

The same table of ranges checks the SDK's arguments and the environment variables that a rank reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import OptionError, closest

KiB: Final = 1024
MiB: Final = 1024 * KiB
MOST_BYTES: Final = 1 << 60  # more than any machine has: a larger size is a wrong unit
_SIZE: Final = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Allowed integers: the multiples of `step` from `least` to `most`, both included.

    Attributes:
        why: Reason why other values are refused, for messages.
    """

    least: int
    most: int
    step: int = 1
    why: str

    def __contains__(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most and value % self.step == 0

    def __str__(self) -> str:
        multiple = f" that is a multiple of {self.step}" if self.step > 1 else ""
        return f"an integer from {self.least} to {self.most}{multiple}"


WEIGHTS: Final = "shard_weights"  # the only option with a tuple
INTEGRITY: Final = "integrity"
ENCRYPT: Final = "encrypt"
GPU_COLLECTIVES: Final = "gpu_collectives"
SILENCE: Final = "silence_seconds"
MAX_RESTARTS: Final = "max_restarts"
ELASTIC_MIN: Final = "elastic_min"
CHECKS: Final = ("off", "crc32c", "mac")  # values of the option integrity
GPU_WAYS: Final = ("auto", "nccl", "staged")  # values of the option gpu_collectives
_WEIGHT: Final = Range(least=0, most=65_535, why="a host's weight is between 0 and 65,535")
_RANGES: Final = {
    "processes_per_host": Range(least=1, most=1024, why="a host starts between 1 and 1024 ranks"),
    "fusion_bytes": Range(
        least=MiB,
        most=4096 * MiB,
        why="buffers below 1 MiB spend more time on latency than on data, and buffers above 4 GiB"
        " leave no gradients to send during the backward pass",
    ),
    "timeout_seconds": Range(
        least=1, most=86_400, why="the deadline of a collective is between one second and one day"
    ),
    "start_timeout_seconds": Range(
        least=1,
        most=86_400,
        why="the deadline for the hosts to connect is between one second and one day",
    ),
    SILENCE: Range(
        least=5,
        most=900,
        why="a network that loses packets may be silent for some seconds, and Linux gives up a"
        " connection after about 15 minutes",
    ),
    MAX_RESTARTS: Range(
        least=0, most=1000, why="ranks are started again at most 1000 times, and 0 turns it off"
    ),
    "lanes": Range(least=1, most=16, why="two ranks open between 1 and 16 connections"),
    "chunk_bytes": Range(
        least=64 * KiB,
        most=16 * MiB,
        step=64,
        why="smaller pieces spend more time on latency than on data, larger ones cannot overlap"
        " sending with reducing, and 64 bytes are reduced at a time",
    ),
    "one_shot_bytes": Range(
        least=0,
        most=MiB,
        why="sending whole buffers to every rank pays off only for small buffers, and 0 turns it"
        " off",
    ),
    "single_owner_bytes": Range(
        least=0,
        most=MiB,
        why="reducing a buffer on one rank pays off only for small buffers, and 0 turns it off",
    ),
    "arriving_bytes": Range(
        least=0,
        most=64 * MiB,
        why="more than 64 MiB overflow the queues of switches, and 0 sets no limit",
    ),
    "elastic_min": Range(
        least=1, most=10_000, why="training needs at least one host, and elastic_min counts hosts"
    ),
}


def range_faults(option: str, value: object, label: str) -> Iterator[OptionError]:
    """Yield the faults of `value` as a value of one option of `DataParallel`.

    Args:
        option: Name of the option.
        value: Value to check, of any type.
        label: Name of the option in the errors (in the message and in the attribute `about`), such
            as the name of its environment variable.
    """
    valid = _RANGES.get(option)
    if valid is not None:
        if value not in valid:
            yield OptionError(f"{label} is {value!r}", valid.why, f"Pass {valid}", about=label)
    elif option == WEIGHTS:
        yield from _weight_faults(value, label)
    elif option == INTEGRITY:
        yield from _choice_faults(value, label, CHECKS, "check of the frames between hosts")
    elif option == GPU_COLLECTIVES:
        yield from _choice_faults(value, label, GPU_WAYS, "way of collectives on GPU tensors")
    else:
        assert option == ENCRYPT
        yield from _flag_faults(value, label)


def _weight_faults(value: object, label: str) -> Iterator[OptionError]:
    if not isinstance(value, tuple):
        yield OptionError(
            f"{label} is {value!r}",
            "it must be a tuple with one weight for each host",
            "Pass a tuple of integers such as (1, 2, 1)",
            about=label,
            kind="type",
        )
        return
    wrong = [index for index, weight in enumerate(value) if weight not in _WEIGHT]
    for index in wrong:
        yield OptionError(
            f"{label} has {value[index]!r} at index {index}",
            _WEIGHT.why,
            f"Pass {_WEIGHT}",
            about=(label, index),
        )
    if not wrong and not any(value):
        yield OptionError(
            f"{label} is {value!r}",
            "a host of weight 0 reduces nothing, so no host would reduce",
            "Pass a weight above 0 for at least one host",
            about=label,
        )


def _choice_faults(
    value: object, label: str, choices: Sequence[str], what: str
) -> Iterator[OptionError]:
    if value not in choices:
        yield OptionError(
            f"{label} is {value!r}",
            f"it is no {what}",
            closest(str(value).lower(), choices),
            about=label,
        )


def _flag_faults(value: object, label: str) -> Iterator[OptionError]:
    if not isinstance(value, bool):
        yield OptionError(
            f"{label} is {value!r}",
            "the connections between hosts are either encrypted or not",
            "Pass True or False; in an environment variable, write 1 or 0",
            about=label,
            kind="type",
        )


def size_in_bytes(size: object) -> int | None:
    """Return a size in bytes as an int.

    `size` is text such as "16GiB" or "16 GB", or an int in bytes. Returns None for any other value,
    and for sizes below 1 byte or above `MOST_BYTES` (2**60). Returns None for "16Gb", too, because
    "Gb" would mean gigabits.
    """
    number = size if type(size) is int else 0
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found and not (found["unit"][1:] == "b" and found["unit"][0].isupper()):
        unit = _UNITS.get(found["unit"].lower(), 0)
        number = int(min(float(found["number"]) * unit, MOST_BYTES + 1))
    return number if 1 <= number <= MOST_BYTES else None
