# SPDX-License-Identifier: Apache-2.0
"""Seeding of each random function by its number, the step and the microbatch."""

from smdist.modelparallel.torch.randomness.rng_streams import (
    RngStream,
    drawing,
    follow_checkpoints,
    generators_kept,
    seed_generators,
)

__all__ = ["RngStream", "drawing", "generators_kept", "seed_generators"]

follow_checkpoints()
