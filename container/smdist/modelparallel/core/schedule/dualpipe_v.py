# SPDX-License-Identifier: Apache-2.0
"""DualPipeV schedule: DeepSeek's DualPipe with two stages on each rank, in the shape of a V.

On p ranks, stages 0 to p - 1 are on ranks 0 to p - 1, and stages p to 2p - 1 on ranks p - 1 to 0.
DualPipe holds all parameters twice, DualPipeV once.

Most of the time a rank runs a forward of one of its stages next to a backward of the other. The two
are independent, so one can compute while the messages of the other are sent. DeepSeek runs them as
one action. Here they are neighbours in the order, the forward first. A rank waits for a message
only when it needs the result, which allows the same overlap.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.order_builder import OrderBuilder
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def dualpipe_v(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for DualPipeV, for at least 2p microbatches on p ranks.

    Each rank has two stages (in brackets), and actions of the second one have small letters:

    rank 0 (0 3)  F0 F1 F2 f0 i0 w0 f1 F3 b1=== f2 B0=== b2=== f3    B1=== b3=== I2 W2 I3 W3
    rank 1 (1 2)     F0 f0 F1 f1 F2 b0=== f2 B0=== F3 b1=== f3 B1=== b2=== B2=== i3 I3 w3 W3

    At both ends of the step, backwards are split into input gradients (I) and weight gradients (W),
    so that the next rank can continue earlier. Every rank holds at most 2p + 1 microbatches. A
    microbatch counts once for each stage that holds it.
    """
    builder = OrderBuilder()
    _warm_up(builder, shape, down=rank, up=shape.num_stages - 1 - rank)
    _steady_state(builder, shape, down=rank, up=shape.num_stages - 1 - rank)
    _cool_down(builder, shape, down=rank, up=shape.num_stages - 1 - rank)
    return builder.order


def _warm_up(builder: OrderBuilder, shape: Shape, *, down: int, up: int) -> None:
    """Add the first phase of a rank's order: forwards, and the first backwards of its second stage.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches.
        down: Number of the rank's first stage.
        up: Number of the rank's second stage.
    """
    hops = shape.num_ranks - 1 - down
    builder.repeat(2 * hops, (Do.F, down))
    builder.repeat(down + 1, (Do.F, down), (Do.F, up))
    builder.repeat(hops, (Do.I, up), (Do.W, up), (Do.F, up))


def _steady_state(builder: OrderBuilder, shape: Shape, *, down: int, up: int) -> None:
    """Add the middle phase of a rank's order, which alternates forwards and backwards.

    The phase repeats a forward of the first stage, a backward of the second stage, a forward of the
    second stage, and a backward of the first stage. The phase ends when no forward is left.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches.
        down: First stage of the rank, on the way down the V.
        up: Second stage of the rank, on the way up the V.
    """
    hops = shape.num_ranks - 1 - down
    forwards_left = shape.num_microbatches - shape.num_ranks - hops
    builder.repeat(forwards_left, (Do.F, down), (Do.B, up), (Do.F, up), (Do.B, down))
    builder.repeat(hops, (Do.B, up), (Do.F, up), (Do.B, down))


def _cool_down(builder: OrderBuilder, shape: Shape, *, down: int, up: int) -> None:
    """Add the last phase: backwards of both stages in turn, then delayed weight gradients.

    The second half of the backwards is split into input gradients (I) and weight gradients (W).
    Weight gradients are added in the order of their input gradients.

    Args:
        builder: Builder of the rank's order.
        shape: Numbers of ranks, stages and microbatches.
        down: First stage of the rank, on the way down the V.
        up: Second stage of the rank, on the way up the V.
    """
    hops = shape.num_ranks - 1 - down
    for number in range(2 * (down + 1)):
        do = Do.B if number < down + 1 else Do.I
        builder.repeat(1, (do, (up, down)[number % 2]))
    for _ in range(hops):
        builder.add_weight_gradients(1)
        builder.repeat(1, (Do.I, down))
    builder.add_weight_gradients(down + 1)
