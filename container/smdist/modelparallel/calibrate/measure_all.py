# SPDX-License-Identifier: Apache-2.0
"""Measurement of all parts of a calibration, each in its share of the time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from smdist.modelparallel.calibrate.folders import measure_channel, measure_disk
from smdist.modelparallel.calibrate.local_ranks import measure_engine
from smdist.modelparallel.calibrate.machine_facts import machine_facts, num_cores, versions
from smdist.modelparallel.calibrate.processor_watch import ProcessorWatch
from smdist.modelparallel.calibrate.products import device_kind, measure_memory, measure_products
from smdist.modelparallel.core.calibration import Calibration, Disturbance

_MOST_RANKS: Final = 4
# Share of the time of each part. A rank's start and the last repetitions come on top.
_PRODUCTS, _MEMORY, _ENGINE, _FOLDER = 0.5, 0.1, 0.3, 0.05


def measure_all(seconds: float, channel: Path | None, say: Callable[[str], None]) -> Calibration:
    """Measure this machine.

    Args:
        seconds: Time for all measurements together, without the start of processes.
        channel: Folder of a channel to read; None for none.
        say: Function that gets the name of each part before it begins.

    Raises:
        SetupError: The processes that measure all-reduces failed.
        OSError: The disk is full or broken.
    """
    device, total = device_kind(), 4 + (channel is not None)
    watch = ProcessorWatch()
    say(f"1 of {total}: matrix products on {device}")
    products, spreads = zip(*measure_products(device, _PRODUCTS * seconds), strict=True)
    say(f"2 of {total}: memory")
    memory = measure_memory(device, _MEMORY * seconds)
    ranks = max(2, min(_MOST_RANKS, num_cores()))
    say(f"3 of {total}: all-reduces and messages between {ranks} processes")
    all_reduce, messages = measure_engine(ranks, _ENGINE * seconds)
    disturbance = Disturbance(busy_share=watch.busy_share(), repeat_spread=median(spreads))
    say(f"4 of {total}: disk")
    folders = [measure_disk(_FOLDER * seconds)]
    if channel is not None:
        say(f"5 of {total}: files of {channel}")
        folders.append(measure_channel(channel, _FOLDER * seconds))
    return Calibration(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine_facts(device),
        versions=versions(),
        products=products,
        memory_bytes_per_second=memory,
        all_reduce=all_reduce,
        messages=messages,
        folders=tuple(folders),
        disturbance=disturbance,
    )
