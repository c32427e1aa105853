# SPDX-License-Identifier: Apache-2.0
"""The backward pass in two halves, for schedules that fill bubbles with the second one.

    I    gradients of a stage's inputs, which the stage before waits for
    W    gradients of its parameters, at any time after

    gradients, rest = backward_inputs(roots, inputs)
    rest.backward_parameters()

What the halves leave is what one backward pass leaves. Nothing is computed in both, and after I
only what W needs is kept: of a product, its other factor and its gradient.
"""

from smdist.modelparallel.torch.executor.halves.split import Rest, backward_inputs

__all__ = ["Rest", "backward_inputs"]
