# SPDX-License-Identifier: Apache-2.0
"""Formats of numbers for people: three digits and a suitable unit."""

from __future__ import annotations

from typing import Final

_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_COUNTS: Final = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def size(num_bytes: float) -> str:
    """Format a number of bytes: "31.0 GiB"."""
    for unit, name in _BYTES:
        if num_bytes >= unit:
            return f"{digits(num_bytes / unit)} {name}"
    return f"{num_bytes:.0f} B"


def seconds(number: float) -> str:
    """Format a time in seconds: "12.3 ms"."""
    for unit, name in _SECONDS:
        if number >= unit:
            return f"{digits(number / unit)} {name}"
    return f"{digits(number / 1e-9)} ns" if number else "0 s"


def count(number: int) -> str:
    """Format a count: "7.09 M"."""
    for unit, name in _COUNTS:
        if number >= unit:
            return f"{digits(number / unit)} {name}"
    return str(number)


def number(many: int, what: str) -> str:
    """Format a number of things: "1 pipeline", "2 microbatches"."""
    ending = "" if many == 1 else "es" if what.endswith("ch") else "s"
    return f"{many} {what}{ending}"


def way(schedule: str, virtual_stages: int, active_microbatches: int | None) -> str:
    """Format a schedule with its options: "interleaved_1f1b (4 stages a rank)"."""
    extra = [f"{virtual_stages} stages a rank"] if virtual_stages > 1 else []
    if active_microbatches is not None:
        extra.append(f"at most {number(active_microbatches, 'microbatch')} under way")
    return schedule + (f" ({', '.join(extra)})" if extra else "")


def slower(factor: float) -> str:
    """Format a slowdown: `factor` is the ratio of the slower time to the faster one."""
    if factor < 1.0005:
        return "as fast"
    if factor >= 2:
        return f"takes {factor:.1f} times as long a sample"
    return f"{100 * (factor - 1):.1f} % slower a sample"


def share(fraction: float) -> str:
    """Format a fraction as a percentage: "12.5 %"."""
    return f"{100 * fraction:.1f} %"


def digits(number: float) -> str:
    """Format a number with three digits, never with an exponent."""
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}"
