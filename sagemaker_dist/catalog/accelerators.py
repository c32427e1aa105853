# SPDX-License-Identifier: Apache-2.0
"""Peak speeds of accelerators from their makers' data sheets, for estimates of step time.

The figures are in accelerators.json with source and date, written by hand. Programs do not reach
these speeds.
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
        name: Model name in EC2's descriptions, such as "A100".
        memory_gib: Memory in GiB, to distinguish two models with the same name. None if only one
            model has this name.
        dtype: Data type for which `flops_per_second` is stated: "bfloat16", or "float16" on
            accelerators without bfloat16.
        flops_per_second: Speed of dense matrix products with this data type, in FLOP/s.
        bytes_per_second: Bandwidth of the accelerator's memory, in bytes/s.
        link_bytes_per_second: Bandwidth to another accelerator of the same host, in one direction,
            in bytes/s.
        source: Data sheet, and the date on which it was read.
    """

    name: str
    memory_gib: float | None = None
    dtype: str
    flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    source: str


def accelerator_of(instance: Instance) -> Accelerator | None:
    """Return the data-sheet figures of an instance type's accelerators; None if unknown."""
    for each in accelerators():
        if each.name == instance.accelerator and each.memory_gib in (
            None,
            instance.accelerator_memory_gib,
        ):
            return each
    return None


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators of the table."""
    return tuple(_read(json.loads(_TABLE.read_text("utf-8"))))


def _read(notes: list[dict[str, Any]]) -> Iterator[Accelerator]:
    for note in notes:
        source = f"{note['source']}, {note['date']}"
        yield from (Accelerator(**row, source=source) for row in note["accelerators"])
