# SPDX-License-Identifier: Apache-2.0
"""Backward pass in two halves, for zero-bubble schedules, which run W while a rank would wait.

    I    gradients of a stage's inputs, which the previous stage waits for
    W    gradients of its parameters, at any time after I

    gradients, rest = backward_inputs(roots, inputs)
    rest.backward_parameters()

Both halves together have the same result as one backward pass, and compute nothing twice. After I
only the tensors that W needs remain: for a product, its other factor and its result's gradient.
"""

from smdist.modelparallel.torch.executor.split_backward.backward_halves import (
    Rest,
    Roots,
    backward_inputs,
)

__all__ = ["Rest", "Roots", "backward_inputs"]
