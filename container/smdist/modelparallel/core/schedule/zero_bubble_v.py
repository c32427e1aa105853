# SPDX-License-Identifier: Apache-2.0
"""ZBV schedule (zero bubble V): two stages on each rank; weight gradients fill the bubble.

On p ranks, stages 0 to p - 1 are on ranks 0 to p - 1, and stages p to 2p - 1 on ranks p - 1 to 0:
the shape of a V. So rank 0 has the first and the last stage, and computes the loss. A gradient
passes the second stages of ranks 0 to p - 1, and then the first stages of ranks p - 1 to 0. All
ranks hold the same number of microbatches.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.order_builder import OrderBuilder
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def zero_bubble_v(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for ZBV, as in the paper on zero bubble (Qi et al., 2024).

    The order assumes that forward passes (F), input gradients (I) and weight gradients (W) take the
    same time. Each rank has two stages (in brackets), and actions of the second one have small
    letters:

    rank 0 (0 5)  F0 F1 F2 F3    f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1    I2 W2 I3 W3
    rank 1 (1 4)     F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 I0 W0 f3 i2 w2 I1 W1 i3 w3 I2    I3 W2 W3
    rank 2 (2 3)        F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 I1 W1 i2 w2 I2 i3 I3 W2 w3 W3

    On p ranks, every rank holds at most 2p microbatches. A microbatch counts once for each stage
    that holds it. With at least 2p - 1 microbatches, the bubble of a step is (p - 1) / 2 times the
    time of a forward pass through both stages of a rank. With fewer microbatches it is longer.
    """
    down, up = rank, shape.num_stages - 1 - rank
    # for fewer microbatches, the actions of the surplus ones are removed in the end
    number = max(2 * shape.num_ranks - 1, shape.num_microbatches)
    builder = OrderBuilder()
    _warm_up(builder, shape, down=down, up=up)
    _steady_state(builder, shape, number, down=down, up=up)
    _cool_down(builder, shape, down=down, up=up)
    return [action for action in builder.order if action.microbatch < shape.num_microbatches]


def _warm_up(builder: OrderBuilder, shape: Shape, *, down: int, up: int) -> None:
    """Add the first phase of a rank's order.

    The rank runs forwards of its first stage, then of both stages in turn. Then its second stage
    runs forwards, each followed by input and weight gradients.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches.
        down: First stage of the rank, on the way down the V.
        up: Second stage of the rank, on the way up the V.
    """
    hops = shape.num_ranks - 1 - down
    builder.repeat(2 * hops + 1, (Do.F, down))
    builder.repeat(down, (Do.F, up), (Do.F, down))
    builder.repeat(hops + 1, (Do.F, up), (Do.I, up), (Do.W, up))


def _steady_state(builder: OrderBuilder, shape: Shape, number: int, *, down: int, up: int) -> None:
    """Add the middle phase of a rank's order, until no forward pass is left.

    The phase repeats a forward pass, input gradients and weight gradients, of both stages in turn.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches of the step.
        number: Number of microbatches to add, which may be larger than the number in the step.
        down: First stage of the rank, on the way down the V.
        up: Second stage of the rank, on the way up the V.
    """
    hops = shape.num_ranks - 1 - down
    gradients_down = ((Do.I, down), (Do.W, down))
    leg_up = ((Do.F, up), (Do.I, up), (Do.W, up))
    builder.repeat(number - shape.num_ranks - hops, (Do.F, down), *gradients_down, *leg_up)
    builder.repeat(hops, *gradients_down, *leg_up)


def _cool_down(builder: OrderBuilder, shape: Shape, *, down: int, up: int) -> None:
    """Add the last phase: remaining input gradients (I), then remaining weight gradients (W).

    Input gradients come first, because other ranks wait for them.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches.
        down: First stage of the rank, on the way down the V.
        up: Second stage of the rank, on the way up the V.
    """
    hops = shape.num_ranks - 1 - down
    builder.repeat(down, (Do.I, down), (Do.I, up))
    builder.repeat(hops + 1, (Do.I, down), (Do.W, down))
    builder.add_weight_gradients_of(up)
    builder.add_weight_gradients_of(down)
