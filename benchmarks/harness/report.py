# SPDX-License-Identifier: Apache-2.0
"""Output of a benchmark: a table on the terminal, the same in Markdown, and a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # not every machine has it

RESULTS = Path(__file__).parents[2] / "build" / "benchmarks"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned for a terminal."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [_line(columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"| {' | '.join(padded)} |"


def save(name: str, text: str, numbers: Any, figure: Figure | None = None) -> None:
    """Write NAME.md, NAME.json and, of a figure, NAME.svg and NAME.png under build/benchmarks."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"{machine()}\n\n{text}\n")
    (RESULTS / f"{name}.json").write_text(json.dumps(numbers, indent=1))
    if figure is not None:
        figure.savefig(RESULTS / f"{name}.svg", bbox_inches="tight")
        figure.savefig(RESULTS / f"{name}.png", bbox_inches="tight", dpi=110)
    print(f"\nThe table, its numbers and the plot are in {RESULTS}/{name}.*")


def machine() -> str:
    """Describe the hardware in one line."""
    cpu = next(
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "CPU implementer"))
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cpu}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}"


def size_text(size: int) -> str:
    """Return a size with its unit, such as "1.5 KiB" for 1536."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
