# SPDX-License-Identifier: Apache-2.0
"""How long work would take on a device at its peak: a bound that ranks layers, not a promise.

An operation takes as long as its arithmetic or its traffic to memory, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.torch.measure.ledger import Work


def seconds(work: Sequence[Work], device: Device) -> float:
    """One operation after the other."""
    flops, num_bytes = device.flops_per_second or inf, device.bytes_per_second or inf
    return sum(max(each.flops / flops, each.num_bytes / num_bytes) for each in work)


def check_speed(device: Device) -> None:
    """Refuses a device of which nobody said how fast it is.

    Raises:
        OptionError: Neither of its speeds is known, or one is not above 0.
    """
    speeds = {
        "flops_per_second": device.flops_per_second,
        "bytes_per_second": device.bytes_per_second,
    }
    known = {name: speed for name, speed in speeds.items() if speed is not None}
    require(
        bool(known) and all(speed > 0 for speed in known.values()),
        what=f"device {device.name!r} has {speeds}",
        why="an estimate divides operations and bytes by the device's speed",
        mend="Set Device(flops_per_second=..., bytes_per_second=...), or measure on the device",
    )
