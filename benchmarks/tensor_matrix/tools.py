# SPDX-License-Identifier: Apache-2.0
"""Test tools for the matrix; tests/support is not an installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import zoo
from matrix import Run
from ranks import World
from tensor_matrix import MICROBATCHES, TensorCase, TensorDifference, alone, compared

__all__ = [
    "MICROBATCHES",
    "Run",
    "TensorCase",
    "TensorDifference",
    "World",
    "alone",
    "compared",
    "zoo",
]
