# SPDX-License-Identifier: Apache-2.0
"""Random numbers belong to functions, steps and microbatches, not to the order of execution."""

from smdist.modelparallel.torch.randomness.draws import (
    Draws,
    drawing,
    generators_kept,
    seed_generators,
)
from smdist.modelparallel.torch.randomness.recomputing import follow_checkpoints

__all__ = ["Draws", "drawing", "generators_kept", "seed_generators"]

follow_checkpoints()
