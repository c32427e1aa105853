# SPDX-License-Identifier: Apache-2.0
"""Depth-first schedules with several stages on each rank: interleaved 1F1B and zero bubble.

Microbatches run in rounds, usually with one microbatch for each rank. A rank runs all microbatches
of a round through its first stage, then through its second stage, and so on. Backward passes run in
the same rounds, with the last stage first.

With v stages on each of p ranks, and at least p microbatches, the bubble of a step is

* (p - 1) (tF + tB) / v for interleaved 1F1B;
* (p - 1) (tF + tI - min(tF, tI, tW)) / v for zero bubble.

tF and tB are the seconds of one microbatch on all stages of a rank, forward and backward. tI and tW
are the parts of tB for input gradients and for weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.core.schedule.blocks import actions_of, alternate, split_backward
from smdist.modelparallel.core.schedule.schedule_shape import Shape


def interleaved_1f1b(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for interleaved 1F1B as in Megatron, for any number of microbatches.

    Here each rank has two stages (in brackets), and actions of the second one have small letters:

    rank 0 (0 2)  F0 F1 f0 f1 F2    b0=== F3 b1=== f2 B0=== f3 B1===    b2===    b3=== B2=== B3===
    rank 1 (1 3)     F0 F1 f0 b0=== f1 b1=== F2 B0=== F3 B1=== f2 b2=== f3 b3=== B2=== B3===

    Before its first backward, each rank runs up to two more forwards than the next rank.

    With v stages on each of p ranks, rank r (from 0) holds at most (v - 1) q + 2 (p - 1 - r) + 1
    microbatches. Here q is the number of microbatches that a rank runs through one stage before it
    goes to the next stage. A microbatch counts once for each stage that holds it.
    """
    return _one_forward_one_backward(shape, rank, slots_a_hop=2)


def zero_bubble(shape: Shape, rank: int) -> list[Action]:
    """Return a rank's actions for zero bubble: ZB-H1, or ZB1P with several stages on each rank.

    A backward pass is split into input gradients (I) and weight gradients (W). W run while the rank
    would otherwise wait.

    rank 0  F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    rank 1     F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    rank 2        F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

    With two stages on each rank (in brackets), actions of the second one have small letters:

    rank 0 (0 2)  F0 F1 f0 f1    i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
    rank 1 (1 3)     F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3

    Other ranks wait only for input gradients (I). So the first gradient reaches rank 0 earlier than
    in 1F1B, and rank 0 runs fewer forwards before its first backward.

    With v stages on each of p ranks, every rank holds at most (v - 1) q + p microbatches. Here q is
    the number of microbatches that a rank runs through one stage before it goes to the next stage.
    A microbatch counts once for each stage that holds it.
    """
    # the paper (Qi et al., 2024) has tW instead of min(tF, tI, tW): it assumes that tW is at most
    # tF and tI
    order = _one_forward_one_backward(shape, rank, slots_a_hop=1)
    return split_backward(order, delay=rank)


def _one_forward_one_backward(shape: Shape, rank: int, *, slots_a_hop: int) -> list[Action]:
    rounds = _rounds(shape)
    stages = range(rank, shape.num_stages, shape.num_ranks)
    hops = shape.num_ranks - 1 - rank
    warmup = (shape.virtual_stages - 1) * len(rounds[0]) + slots_a_hop * hops + 1
    return alternate(
        _through(Do.F, stages, rounds), _through(Do.B, reversed(stages), rounds), warmup=warmup
    )


def _rounds(shape: Shape) -> list[range]:
    """Return the microbatches of each round.

    All microbatches of a round run on one stage of a rank, then on the rank's next stage.

    On 4 ranks, 10 microbatches have the rounds 0-4 and 5-9, and 11 have the rounds 0-5 and 6-10.
    """
    # With p microbatches in a round on p ranks, the first one returns from the last rank just when
    # the first rank has finished the round on its first stage. Longer rounds come first: in the
    # last rounds, additional forwards would come too late for the backwards that alternate with
    # them. torch supports equal rounds only; for these, its orders are the same.
    number = max(1, shape.num_microbatches // shape.num_ranks)
    size, longer = divmod(shape.num_microbatches, number)
    starts = [index * size + min(index, longer) for index in range(number + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def _through(do: Do, stages: Iterable[int], rounds: list[range]) -> list[Action]:
    """Return actions of one kind: for each round, all its microbatches on each of the stages.

    Args:
        do: Kind of the actions.
        stages: Stages of the rank, in the order in which a round runs through them.
        rounds: Microbatches of each round.
    """
    stages = list(stages)
    return [
        action
        for microbatches in rounds
        for stage in stages
        for action in actions_of(do, stage, microbatches)
    ]
