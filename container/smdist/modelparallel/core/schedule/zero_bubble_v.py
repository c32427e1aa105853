# SPDX-License-Identifier: Apache-2.0
"""ZBV schedule: two stages a rank in the shape of a V, and weight gradients fill the bubble.

The first and the last stage share a rank, so the rank of the input also computes the loss. From
there the first gradient goes along the second leg to the last rank, which is the first that has
gradients for both of its stages. All ranks hold the same number of microbatches.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.order_builder import Script
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def zero_bubble_v(shape: Shape, rank: int) -> list[Action]:
    """Order ZBV as in its paper for tF = tI = tW.

    rank 0 (0 5)  F0 F1 F2 F3    f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1    I2 W2 I3 W3
    rank 1 (1 4)     F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 I0 W0 f3 i2 w2 I1 W1 i3 w3 I2    I3 W2 W3
    rank 2 (2 3)        F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 I1 W1 i2 w2 I2 i3 I3 W2 w3 W3

    Every rank holds 2p microbatches, counted for each of its stages, and the bubble of a step is
    (p - 1) tF / v. The phases need 2p - 1 microbatches; with fewer, the actions of the missing ones
    are left out, and the step takes longer than necessary.
    """
    down, up = rank, shape.num_stages - 1 - rank
    number = max(2 * shape.num_ranks - 1, shape.num_microbatches)
    script = Script()
    _fill(script, shape, down=down, up=up)
    _hold(script, shape, number, down=down, up=up)
    _drain(script, shape, down=down, up=up)
    return [action for action in script.order if action.microbatch < shape.num_microbatches]


def _fill(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Add forwards down the V, then up it as well, then the first gradients of its second leg."""
    hops = shape.num_ranks - 1 - down
    script.repeat(2 * hops + 1, (Do.F, down))
    script.repeat(down, (Do.F, up), (Do.F, down))
    script.repeat(hops + 1, (Do.F, up), (Do.I, up), (Do.W, up))


def _hold(script: Script, shape: Shape, number: int, *, down: int, up: int) -> None:
    """Add every stage in turn, until the forwards end; those of the first leg end first."""
    hops = shape.num_ranks - 1 - down
    gradients_down = ((Do.I, down), (Do.W, down))
    leg_up = ((Do.F, up), (Do.I, up), (Do.W, up))
    script.repeat(number - shape.num_ranks - hops, (Do.F, down), *gradients_down, *leg_up)
    script.repeat(hops, *gradients_down, *leg_up)


def _drain(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Add the last input gradients, which other ranks need, then the remaining weight gradients."""
    hops = shape.num_ranks - 1 - down
    script.repeat(down, (Do.I, down), (Do.I, up))
    script.repeat(hops + 1, (Do.I, down), (Do.W, down))
    script.settle_stage(up)
    script.settle_stage(down)
