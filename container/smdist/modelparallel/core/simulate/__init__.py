# SPDX-License-Identifier: Apache-2.0
"""Simulator of one training step of a pipeline: predicts its time and the memory of each rank."""

from smdist.modelparallel.core.simulate.gradient_reduction import (
    FUSION_BYTES,
    ReplicaLinks,
    all_gather_seconds,
    all_reduce_seconds,
    bucket_bytes,
    end_bucket_bytes,
    exposed_seconds,
    reduce_scatter_seconds,
    replicas_on,
)
from smdist.modelparallel.core.simulate.simulation import simulate
from smdist.modelparallel.core.simulate.step_clock import StepClock, StepEnds
from smdist.modelparallel.core.simulate.timeline import Peak, Reduction, SimulatedEvent, Timeline

__all__ = [
    "FUSION_BYTES",
    "Peak",
    "Reduction",
    "ReplicaLinks",
    "SimulatedEvent",
    "StepClock",
    "StepEnds",
    "Timeline",
    "all_gather_seconds",
    "all_reduce_seconds",
    "bucket_bytes",
    "end_bucket_bytes",
    "exposed_seconds",
    "reduce_scatter_seconds",
    "replicas_on",
    "simulate",
]
