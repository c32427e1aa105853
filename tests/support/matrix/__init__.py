# SPDX-License-Identifier: Apache-2.0
"""Comparison of models on real pipelines with one process that accumulates the same microbatches.

    case = Case(model="gpt2", ranks=2, schedule="1f1b")
    difference = compared(world, case, alone("gpt2", steps=20))

All runs start from the same weights, use the same batches and draw the same dropout.
"""

from .case import MICROBATCHES, Case
from .compare import Difference, compared
from .one_process import Run, alone

__all__ = ["MICROBATCHES", "Case", "Difference", "Run", "alone", "compared"]
