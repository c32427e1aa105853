# SPDX-License-Identifier: Apache-2.0
"""Simulator: predicts the time of a pipeline's step, and the memory of each rank during it."""

from smdist.modelparallel.core.simulate.gradient_reduction import (
    ReplicaLinks,
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
    replicas_on,
)
from smdist.modelparallel.core.simulate.simulated_trace import chrome_trace, rows
from smdist.modelparallel.core.simulate.simulation import simulate
from smdist.modelparallel.core.simulate.timeline import Peak, Reduction, SimulatedEvent, Timeline

__all__ = [
    "Peak",
    "Reduction",
    "ReplicaLinks",
    "SimulatedEvent",
    "Timeline",
    "all_gather_seconds",
    "all_reduce_seconds",
    "chrome_trace",
    "reduce_scatter_seconds",
    "replicas_on",
    "rows",
    "simulate",
]
