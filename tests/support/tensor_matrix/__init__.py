# SPDX-License-Identifier: Apache-2.0
"""Comparison of models whose layers are split over real ranks with one process.

    case = TensorCase(model="gpt2", tensor=2, stages=2)
    found = compared(world, case, alone(case, steps=20))

All runs start from the same weights, use the same batches and draw the same dropout.
"""

from .compare import TensorDifference, compared
from .one_process import alone
from .tensor_case import MICROBATCHES, TensorCase

__all__ = ["MICROBATCHES", "TensorCase", "TensorDifference", "alone", "compared"]
