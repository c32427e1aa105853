# SPDX-License-Identifier: Apache-2.0
"""Depth-first schedules with several stages a rank: microbatches run in rounds.

With v stages on each rank, every stage has 1/v of the work, so the first microbatch reaches the
last rank after 1/v of the time, and the bubble is 1/v of the bubble with one stage a rank.

A rank runs the microbatches of one round through its first stage, then the same ones through its
second, and so on; then comes the next round. If a round has as many microbatches as there are
ranks, its first microbatch is back from the last rank when a rank has finished the round on its
first stage. Backwards run in the same rounds, the last stage first.

There are m // p rounds, at least one. If they cannot be equal, the earlier rounds have one
microbatch more. The later rounds may not: their forwards would then be late for the backwards that
alternate with them. torch supports equal rounds only (m // p divides m); the orders are then the
same as here.

With the times tF, tB, tI, tW of a whole rank, and p microbatches or more, the bubble of a step is

  * (p - 1) (tF + tB) / v for interleaved 1F1B;
  * (p - 1) (tF + tI - min(tF, tI, tW)) / v for zero bubble. Its paper has tW instead of the
    minimum, and assumes that tW is not longer than tF and tI: a wait is no longer than these, so
    weight gradients fill no more of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import run_of, split_backward, take_turns
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def interleaved_1f1b(shape: Shape, rank: int) -> list[Action]:
    """Order interleaved 1F1B as in Megatron, for any number of microbatches.

    rank 0 (0 2)  F0 F1 f0 f1 F2    b0=== F3 b1=== f2 B0=== f3 B1===    b2===    b3=== B2=== B3===
    rank 1 (1 3)     F0 F1 f0 b0=== f1 b1=== F2 B0=== F3 B1=== f2 b2=== f3 b3=== B2=== B3===

    For each hop away from the last rank, the first gradient arrives two slots later: one for the
    forward on its way there, one for the gradient on its way back. With rounds of q microbatches,
    a rank r holds (v - 1) q + 2 (p - 1 - r) + 1 microbatches, counted for each of its stages.
    """
    return _one_forward_one_backward(shape, rank, slots_a_hop=2)


def zero_bubble(shape: Shape, rank: int) -> list[Action]:
    """Order ZB-H1, or ZB1P with several stages a rank: weight gradients fill the bubble.

    rank 0  F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    rank 1     F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    rank 2        F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

    rank 0 (0 2)  F0 F1 f0 f1    i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
    rank 1 (1 3)     F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3

    Only input gradients are on the critical path, so a gradient comes back one slot earlier for
    each hop, and the lead is shorter than in 1F1B by one for each hop. Rank r delays r weight
    gradients, and computes them while the other ranks still wait for their last gradients. The
    delayed weight gradients cost as much memory as the shorter lead saves: every rank holds
    (v - 1) q + p microbatches, counted for each of its stages.
    """
    order = _one_forward_one_backward(shape, rank, slots_a_hop=1)
    return split_backward(order, wait=rank)


def _one_forward_one_backward(shape: Shape, rank: int, *, slots_a_hop: int) -> list[Action]:
    rounds = _rounds(shape)
    stages = range(rank, shape.num_stages, shape.num_ranks)
    hops = shape.num_ranks - 1 - rank
    lead = (shape.virtual_stages - 1) * len(rounds[0]) + slots_a_hop * hops + 1
    return take_turns(
        _through(Do.F, stages, rounds), _through(Do.B, reversed(stages), rounds), lead=lead
    )


def _rounds(shape: Shape) -> list[range]:
    """Return the microbatches of each round: 10 on 4 ranks are 0-4 and 5-9, 11 are 0-5 and 6-10."""
    number = max(1, shape.num_microbatches // shape.num_ranks)
    size, longer = divmod(shape.num_microbatches, number)
    starts = [index * size + min(index, longer) for index in range(number + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def _through(do: Do, stages: Iterable[int], rounds: list[range]) -> list[Action]:
    stages = list(stages)
    return [
        action
        for microbatches in rounds
        for stage in stages
        for action in run_of(do, stage, microbatches)
    ]
