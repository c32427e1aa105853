# SPDX-License-Identifier: Apache-2.0
"""Predicts how long a pipeline's step takes, and what each rank holds meanwhile."""

from smdist.modelparallel.core.simulate.simulation import simulate
from smdist.modelparallel.core.simulate.timeline import Event, Reduction, Timeline

__all__ = ["Event", "Reduction", "Timeline", "simulate"]
