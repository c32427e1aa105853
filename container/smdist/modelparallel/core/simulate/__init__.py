# SPDX-License-Identifier: Apache-2.0
"""Predicts how long a pipeline's step takes, and what each rank holds meanwhile."""

from smdist.modelparallel.core.simulate.reduction import (
    Replicas,
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
    replicas_on,
)
from smdist.modelparallel.core.simulate.simulation import simulate
from smdist.modelparallel.core.simulate.timeline import Event, Peak, Reduction, Timeline
from smdist.modelparallel.core.simulate.trace import chrome_trace, rows

__all__ = [
    "Event",
    "Peak",
    "Reduction",
    "Replicas",
    "Timeline",
    "all_gather_seconds",
    "all_reduce_seconds",
    "chrome_trace",
    "reduce_scatter_seconds",
    "replicas_on",
    "rows",
    "simulate",
]
