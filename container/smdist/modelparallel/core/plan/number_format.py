# SPDX-License-Identifier: Apache-2.0
"""Formats of numbers for reports and pictures: three digits and a suitable unit."""

from __future__ import annotations

from typing import Final

_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_COUNTS: Final = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def size_unit(num_bytes: float) -> tuple[int, str]:
    """Return (bytes in one unit, name of the unit) for a number of bytes: (1024, "KiB") for 2000.

    The result is the largest unit that is not above the number of bytes.
    """
    return next(((unit, name) for unit, name in _BYTES if num_bytes >= unit), (1, "bytes"))


def time_unit(seconds: float) -> tuple[float, str]:
    """Return (seconds in one unit, name of the unit) for a time: (0.001, "ms") for 0.02.

    The result is the largest unit that is not above the time. For 0 it is a second. For a time
    below a nanosecond it is a nanosecond.
    """
    if not seconds:
        return _SECONDS[0]
    return next(((unit, name) for unit, name in _SECONDS if seconds >= unit), _SECONDS[-1])


def size(num_bytes: float) -> str:
    """Format a number of bytes: "31.0 GiB"."""
    unit, name = size_unit(num_bytes)
    return f"{num_bytes:.0f} B" if unit == 1 else f"{digits(num_bytes / unit)} {name}"


def seconds(number: float) -> str:
    """Format a time in seconds: "12.3 ms"."""
    unit, name = time_unit(number)
    return f"{digits(number / unit)} {name}" if number else "0 s"


def count(number: int) -> str:
    """Format a count with the suffix k, M or B: "7.09 M"."""
    for unit, name in _COUNTS:
        if number >= unit:
            return f"{digits(number / unit)} {name}"
    return str(number)


def number(many: int, what: str) -> str:
    """Format a number with its noun in singular or plural: "1 pipeline", "2 microbatches"."""
    ending = "" if many == 1 else "es" if what.endswith("ch") else "s"
    return f"{many} {what}{ending}"


def way(schedule: str, virtual_stages: int, active_microbatches: int | None) -> str:
    """Format a schedule's name with its options: "interleaved_1f1b (4 stages on each rank)".

    Args:
        schedule: Name of the schedule.
        virtual_stages: Number of stages on each rank.
        active_microbatches: Largest number of microbatches in flight; None for schedules without
            this option.
    """
    extra = [f"{virtual_stages} stages on each rank"] if virtual_stages > 1 else []
    if active_microbatches is not None:
        extra.append(f"at most {number(active_microbatches, 'microbatch')} in flight")
    return schedule + (f" ({', '.join(extra)})" if extra else "")


def slower(factor: float) -> str:
    """Format a slowdown as a clause: "it is 4.0 % slower per sample" for the factor 1.04.

    Args:
        factor: Ratio of the slower time to the faster time.
    """
    if factor < 1.0005:
        return "it is as fast"
    if factor >= 2:
        return f"it takes {factor:.1f} times as long per sample"
    return f"it is {100 * (factor - 1):.1f} % slower per sample"


def share(fraction: float) -> str:
    """Format a fraction as a percentage: "12.5 %"."""
    return f"{100 * fraction:.1f} %"


def digits(number: float) -> str:
    """Format a number with three significant digits and without an exponent."""
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}"
