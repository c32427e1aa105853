# SPDX-License-Identifier: Apache-2.0
"""ZBV: two stages a rank in the shape of a V, and weight gradients fill the bubble.

The last stage is on the rank of the first, so the loss is where the input is and the first
gradient needs no way back: the last rank of the V is the first that has all it needs. Every rank
holds as much as every other.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.script import Script
from smdist.modelparallel.core.schedule.shape import Shape


def zero_bubble_v(shape: Shape, rank: int) -> list[Action]:
    """ZBV as its paper has it for tF = tI = tW.

    rank 0 (0 5)  F0 F1 F2 F3    f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1    I2 W2 I3 W3
    rank 1 (1 4)     F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 I0 W0 f3 i2 w2 I1 W1 i3 w3 I2    I3 W2 W3
    rank 2 (2 3)        F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 I1 W1 i2 w2 I2 i3 I3 W2 w3 W3

    Every rank holds 2p microbatches of single stages, and a step takes (p - 1) tF / v longer than
    its work. The phases need 2p - 1 microbatches; for fewer, what has to do with the missing ones
    is left out, and the step takes longer than it would have to.
    """
    down, up = rank, shape.num_stages - 1 - rank
    number = max(2 * shape.num_ranks - 1, shape.num_microbatches)
    script = Script()
    _fill(script, shape, down=down, up=up)
    _hold(script, shape, number, down=down, up=up)
    _drain(script, shape, down=down, up=up)
    return [action for action in script.order if action.microbatch < shape.num_microbatches]


def _fill(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Forwards down the V, then up it as well, then the first gradients down its second leg."""
    hops = shape.num_ranks - 1 - down
    script.repeat(2 * hops + 1, (Do.F, down))
    script.repeat(down, (Do.F, up), (Do.F, down))
    script.repeat(hops + 1, (Do.F, up), (Do.I, up), (Do.W, up))


def _hold(script: Script, shape: Shape, number: int, *, down: int, up: int) -> None:
    """Every stage in turn, until the forwards run out, first of the first leg."""
    hops = shape.num_ranks - 1 - down
    gradients_down = ((Do.I, down), (Do.W, down))
    leg_up = ((Do.F, up), (Do.I, up), (Do.W, up))
    script.repeat(number - shape.num_ranks - hops, (Do.F, down), *gradients_down, *leg_up)
    script.repeat(hops, *gradients_down, *leg_up)


def _drain(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """The last input gradients, which others wait for; weight gradients while waiting for more."""
    hops = shape.num_ranks - 1 - down
    script.repeat(down, (Do.I, down), (Do.I, up))
    script.repeat(hops + 1, (Do.I, down), (Do.W, down))
    script.settle_stage(up)
    script.settle_stage(down)
