# SPDX-License-Identifier: Apache-2.0
"""Models on real pipelines beside one process that accumulates the same microbatches.

    case = Case(model="gpt2", ranks=2, schedule="1f1b")
    difference = compared(world, case, alone_in(world, "gpt2", steps=20))

Everybody starts from the same weights, sees the same batches and draws the same dropout.
"""

from .case import MICROBATCHES, Case
from .compare import Difference, compared
from .one_process import Run, alone

__all__ = ["MICROBATCHES", "Case", "Difference", "Run", "alone", "compared"]
