# SPDX-License-Identifier: Apache-2.0
"""Test tools for the matrix; tests/support is not an installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import zoo
from checkpoints import LAYOUTS, pairs
from matrix import MICROBATCHES, Case, Difference, Run, alone, compared
from ranks import World

__all__ = [
    "LAYOUTS",
    "MICROBATCHES",
    "Case",
    "Difference",
    "Run",
    "World",
    "alone",
    "compared",
    "pairs",
    "zoo",
]
