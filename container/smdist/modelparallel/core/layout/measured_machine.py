# SPDX-License-Identifier: Apache-2.0
"""Machine for predictions of layouts with the speeds of a calibration file."""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.calibration import Calibration
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.layout.machine_speed import Curve, Machine

_SPREAD: Final = 0.15  # relative uncertainty of seconds that follow from measured speeds
_MOST_SPREAD: Final = 0.9


def measured_machine(cluster: Cluster, calibration: Calibration) -> Machine:
    """Return a machine whose speeds are those of a calibration, by size.

    Products of matrices have the measured speed in the calibration's `working_dtype`. Without GPUs,
    messages inside a host have the measured speed, too. Other figures are those of `Machine`. If
    other programs disturbed the measurement, seconds are more uncertain.

    Args:
        cluster: Cluster with the calibration's speeds, as `Calibration.applied_to` returns it.
        calibration: Measured speeds.
    """
    source = str(calibration)
    fastest = calibration.flops_per_second(calibration.working_dtype)
    assert fastest is not None  # the working dtype is one that was measured
    speeds = {
        each.size: each.flops_per_second for each in calibration.of_dtype(calibration.working_dtype)
    }
    products = Curve(
        points=tuple((float(size), speed / fastest) for size, speed in speeds.items()),
        source=source, is_measured=True,
    )  # fmt: skip
    disturbance = calibration.disturbance
    spread, disturbed = _SPREAD, ""
    if disturbance is not None and disturbance.is_large:
        spread = min(_MOST_SPREAD, _SPREAD + disturbance.uncertainty)
        disturbed = f"{source}: {disturbance}"
    if calibration.machine.device == "cpu":
        return Machine(
            cluster=cluster, products=products, memory=1.0, spread=spread,
            link=_link(calibration, source), overlaps=False, disturbed=disturbed,
        )  # fmt: skip
    return Machine(
        cluster=cluster, products=products, memory=1.0, spread=spread, disturbed=disturbed
    )


def _link(calibration: Calibration, source: str) -> Curve:
    """Return the fraction of the link's bandwidth that messages reach after its latency."""
    link = calibration.link()
    seconds = {each.num_bytes: each.seconds for each in calibration.messages}
    points = []
    for num_bytes in sorted(seconds):
        alone = num_bytes / link.bytes_per_second
        sending = max(seconds[num_bytes] - link.latency_seconds, alone)
        points.append((float(num_bytes), alone / sending))
    return Curve(points=tuple(points), source=source, is_measured=True)
