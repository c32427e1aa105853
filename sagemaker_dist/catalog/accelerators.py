# SPDX-License-Identifier: Apache-2.0
"""How fast accelerators are, as their makers say: what estimates of a training step start from.

accelerators.json has the figures with source and date; people write it. A figure is the most
that the hardware could do, never what a program reaches.
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
    """One model of accelerator.

    Attributes:
        name: As EC2 calls it, such as "A100".
        memory_gib: Where models of one name differ by it; else None.
        dtype: Of the figure of operations: "bfloat16", or "float16" where it has no bfloat16.
        flops_per_second: Of dense matrix products in that dtype.
        bytes_per_second: Of its memory.
        link_bytes_per_second: From one to a neighbour in the same host, one way.
        source: Who says so, with the date.
    """

    name: str
    memory_gib: float | None = None
    dtype: str
    flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str


def accelerator_of(instance: Instance) -> Accelerator | None:
    """What is known of a type's accelerators, or None."""
    for each in accelerators():
        if each.name == instance.accelerator and each.memory_gib in (
            None,
            instance.accelerator_memory_gib,
        ):
            return each
    return None


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """All of the table."""
    return tuple(_read(json.loads(_TABLE.read_text("utf-8"))))


def _read(notes: list[dict[str, Any]]) -> Iterator[Accelerator]:
    for note in notes:
        source = f"{note['source']}, {note['date']}"
        yield from (Accelerator(**row, source=source) for row in note["accelerators"])
