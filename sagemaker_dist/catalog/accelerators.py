# SPDX-License-Identifier: Apache-2.0
"""Peak speeds of accelerators by their makers' data sheets, for estimates of step time.

accelerators.json holds the figures with source and date; people write it. A figure is the most that
the hardware could do, never what a program reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.catalog.instances import Instance

_TABLE: Final = Path(__file__).with_name("accelerators.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Data-sheet figures of one accelerator model.

    Attributes:
        name: Name in EC2's descriptions, such as "A100".
        memory_gib: Memory in GiB, where models with the same name differ by it; else None.
        dtype: Type that `flops_per_second` holds for: "bfloat16", or "float16" on accelerators
            without bfloat16.
        flops_per_second: Dense matrix products in that type, FLOP/s.
        bytes_per_second: Memory bandwidth, bytes/s.
        link_bytes_per_second: Bandwidth to a neighbour in the same host, one way, bytes/s.
        source: Data sheet and date.
    """

    name: str
    memory_gib: float | None = None
    dtype: str
    flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str


def accelerator_of(instance: Instance) -> Accelerator | None:
    """Return the data sheet of an instance type's accelerators, or None if there is none."""
    for each in accelerators():
        if each.name == instance.accelerator and each.memory_gib in (
            None,
            instance.accelerator_memory_gib,
        ):
            return each
    return None


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return every row of the table."""
    return tuple(_read(json.loads(_TABLE.read_text("utf-8"))))


def _read(notes: list[dict[str, Any]]) -> Iterator[Accelerator]:
    for note in notes:
        source = f"{note['source']}, {note['date']}"
        yield from (Accelerator(**row, source=source) for row in note["accelerators"])
