# SPDX-License-Identifier: Apache-2.0
"""Backward pass in two halves, for schedules that fill bubbles with the second half.

    I    gradients of a stage's inputs, which the stage before waits for
    W    gradients of its parameters, at any time after I

    gradients, rest = backward_inputs(roots, inputs)
    rest.backward_parameters()

Both halves together have the same result as one backward pass. Nothing is computed twice. After I
only the tensors for W are kept: for a product, its other factor and the gradient of its result.
"""

from smdist.modelparallel.torch.executor.split_backward.backward_halves import (
    Rest,
    Roots,
    backward_inputs,
)

__all__ = ["Rest", "Roots", "backward_inputs"]
