# SPDX-License-Identifier: Apache-2.0
"""Random numbers that depend on function, step and microbatch, not on the order of execution."""

from smdist.modelparallel.torch.randomness.rng_streams import (
    RngStream,
    drawing,
    follow_checkpoints,
    generators_kept,
    seed_generators,
)

__all__ = ["RngStream", "drawing", "generators_kept", "seed_generators"]

follow_checkpoints()
