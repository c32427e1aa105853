# SPDX-License-Identifier: Apache-2.0
"""Text of a calibration for users: one table for each part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from smdist.modelparallel.core.calibration import Calibration
from smdist.modelparallel.core.plan import number_format as text
from smdist.modelparallel.core.plan.text_table import table

_WIDTH: Final = 100


def report(calibration: Calibration) -> str:
    """Return the measured speeds of a machine as text."""
    return "\n".join(_lines(calibration)) + "\n"


def _lines(found: Calibration) -> Iterator[str]:
    yield from _machine_lines(found)
    yield "\nMatrix products, GFLOP/s"
    dtypes = list(dict.fromkeys(each.dtype for each in found.products))
    speeds = {(each.size, each.dtype): each.flops_per_second for each in found.products}
    rows = [
        [str(size), *(_giga(speeds.get((size, dtype))) for dtype in dtypes)]
        for size in sorted({each.size for each in found.products})
    ]
    yield from table(["size", *dtypes], rows, left=(), width=_WIDTH)
    memory = _giga(found.memory_bytes_per_second)
    yield f"\nMemory: {memory} GB/s read and written while it is copied"
    if found.all_reduce:
        ranks = found.all_reduce[0].num_ranks
        yield f"\nAll-reduce between {ranks} processes"
        rows = [
            [text.size(each.num_bytes), text.seconds(each.seconds), _giga(each.bytes_per_second)]
            for each in found.all_reduce
        ]
        yield from table(["size", "time", "GB/s sent"], rows, left=(), width=_WIDTH)
    yield "\nMessage from one process to another"
    rows = [
        [text.size(each.num_bytes), text.seconds(each.seconds),
         _giga(each.num_bytes / each.seconds)]
        for each in found.messages
    ]  # fmt: skip
    yield from table(["size", "time", "GB/s"], rows, left=(), width=_WIDTH)
    yield "\nFiles"
    rows = [
        [each.folder, text.size(each.num_bytes), _giga(each.write_bytes_per_second),
         _giga(each.read_bytes_per_second)]
        for each in found.folders
    ]  # fmt: skip
    yield from table(
        ["folder", "size", "GB/s written", "GB/s read"], rows, left=("folder",), width=_WIDTH
    )


def _machine_lines(found: Calibration) -> Iterator[str]:
    """Yield the machine, its programs, and what disturbed the measurement."""
    machine = found.machine
    yield f"{machine.device_name}, measured on {found.date}"
    cores, memory = text.number(machine.num_cores, "core"), text.size(machine.memory_bytes)
    devices = f", {text.number(machine.num_devices, 'GPU')}" if machine.device != "cpu" else ""
    yield f"  {machine.processor}, {cores}, {memory}{devices}"
    yield f"  {', '.join(f'{name} {number}' for name, number in found.versions.items())}"
    if found.disturbance is not None:
        yield f"  {found.disturbance}"


def _giga(number: float | None) -> str:
    return "-" if number is None else text.digits(number / 1e9)
