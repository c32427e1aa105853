# SPDX-License-Identifier: Apache-2.0
"""Backward pass of a pipeline stage in two halves, for zero-bubble schedules.

    I    gradients of the stage's inputs, which the previous stage waits for
    W    gradients of the stage's parameters, which can be computed at any time after I

A schedule runs W at times when the rank would otherwise wait for other ranks.

    gradients, rest = backward_inputs(roots, inputs)       I
    rest.backward_parameters()                             W

Both halves together have the same result as one backward pass, and compute nothing twice. Between I
and W only the tensors that W needs are kept. For the weight of a matrix product, these are the
other factor and the gradient of the result.
"""

from smdist.modelparallel.torch.executor.split_backward.backward_halves import (
    Rest,
    Roots,
    backward_inputs,
)

__all__ = ["Rest", "Roots", "backward_inputs"]
