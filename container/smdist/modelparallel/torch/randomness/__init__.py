# SPDX-License-Identifier: Apache-2.0
"""Seeding of random functions, so that their numbers do not depend on how a model is split."""

from smdist.modelparallel.torch.randomness.rng_streams import (
    RngStream,
    drawing,
    follow_checkpoints,
    generators_kept,
    seed_generators,
)

__all__ = ["RngStream", "drawing", "generators_kept", "seed_generators"]

follow_checkpoints()
