# SPDX-License-Identifier: Apache-2.0
"""DualPipeV schedule: DeepSeek's DualPipe folded into a V, with the parameters held once.

Most of the time a rank can run a forward of one leg of the V and a backward of the other. The two
are independent, so one computes while the messages of the other travel: DeepSeek runs them as one
action. In this schedule they are neighbours, the forward first. A rank waits for sends and receives
only when it needs their results, which allows the same overlap.
"""

from __future__ import annotations

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.order_builder import Script
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def dualpipe_v(shape: Shape, rank: int) -> list[Action]:
    """Order DualPipeV, for 2p microbatches or more.

    rank 0 (0 3)  F0 F1 F2 f0 i0 w0 f1 F3 b1=== f2 B0=== b2=== f3    B1=== b3=== I2 W2 I3 W3
    rank 1 (1 2)     F0 f0 F1 f1 F2 b0=== f2 B0=== F3 b1=== f3 B1=== b2=== B2=== i3 I3 w3 W3

    Backwards are whole except at both ends, where split ones let the next rank continue sooner.
    Every rank holds 2p + 1 microbatches, counted for each of its stages.
    """
    script = Script()
    _fill(script, shape, down=rank, up=shape.num_stages - 1 - rank)
    _hold(script, shape, down=rank, up=shape.num_stages - 1 - rank)
    _drain(script, shape, down=rank, up=shape.num_stages - 1 - rank)
    return script.order


def _fill(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Add forwards down the V, then on both legs, then the first gradients, split."""
    hops = shape.num_ranks - 1 - down
    script.repeat(2 * hops, (Do.F, down))
    script.repeat(down + 1, (Do.F, down), (Do.F, up))
    script.repeat(hops, (Do.I, up), (Do.W, up), (Do.F, up))


def _hold(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Add a forward of one leg with a backward of the other, until the first leg's forwards end."""
    hops = shape.num_ranks - 1 - down
    forwards_left = shape.num_microbatches - shape.num_ranks - hops
    script.repeat(forwards_left, (Do.F, down), (Do.B, up), (Do.F, up), (Do.B, down))
    script.repeat(hops, (Do.B, up), (Do.F, up), (Do.B, down))


def _drain(script: Script, shape: Shape, *, down: int, up: int) -> None:
    """Add backwards of both legs in turn, the later half split; then the rest, the oldest first."""
    hops = shape.num_ranks - 1 - down
    for number in range(2 * (down + 1)):
        do = Do.B if number < down + 1 else Do.I
        script.repeat(1, (do, (up, down)[number % 2]))
    for _ in range(hops):
        script.settle(1)
        script.repeat(1, (Do.I, down))
    script.settle(down + 1)
