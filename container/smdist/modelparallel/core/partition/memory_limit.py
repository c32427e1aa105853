# SPDX-License-Identifier: Apache-2.0
"""Cuts that fit in memory, and the error if no cuts fit."""

from __future__ import annotations

from dataclasses import replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition.chain import Chain
from smdist.modelparallel.core.partition.dynamic_programming import cut
from smdist.modelparallel.core.partition.objective import Aim
from smdist.modelparallel.core.partition.refine import improve
from smdist.modelparallel.core.partition.scoring import Judge

STEPS = 8
"""Number of bisection steps in the search for the best memory limit of a stage."""


def best_cuts(judge: Judge) -> tuple[int, ...]:
    """Return the best cuts that fit in memory.

    Raises:
        OptionError: No cuts fit; the error names the least memory that would be enough.
    """
    chain, aim = judge.chain, judge.aim
    ends = cut(chain, aim, aim.device_bytes)
    if ends is not None and aim.shares_ranks and judge.score_cuts(ends).excess_bytes:
        ends = _within_ranks(judge)
    if ends is None:
        ends = _emptiest(chain, aim)
        if aim.shares_ranks:
            ends = improve(judge, ends)
        if judge.score_cuts(ends).excess_bytes:
            raise _too_small(judge, ends)
    if aim.shares_ranks or judge.objective is not None:
        ends = improve(judge, ends)
    return ends


def _within_ranks(judge: Judge) -> tuple[int, ...] | None:
    """Return the best cuts for a common limit of all stages with which every rank fits as well."""
    aim = judge.aim
    assert aim.device_bytes is not None
    most = max(aim.rank_of.count(rank) for rank in range(aim.num_ranks))
    low, high = aim.device_bytes // most, aim.device_bytes
    best = cut(judge.chain, aim, low)
    for _ in range(STEPS):
        middle = (low + high) // 2
        ends = cut(judge.chain, aim, middle)
        if ends is None:
            low = middle
        elif judge.score_cuts(ends).excess_bytes:
            high = middle
        else:
            low, best = middle, ends
    return best


def _emptiest(chain: Chain, aim: Aim) -> tuple[int, ...]:
    """Return the cuts whose fullest stage holds the fewest bytes."""
    ends = cut(chain, replace(aim, memory_weight=1.0, bytes_unit=1.0), None)
    assert ends is not None  # without a limit, any cut fits
    return ends


def _too_small(judge: Judge, ends: tuple[int, ...]) -> OptionError:
    aim = judge.aim
    assert aim.device_bytes is not None
    placement = judge.place(judge.assign(ends))
    shares = judge.shares(placement)
    peaks = judge.peaks(shares, placement)
    rank = peaks.index(max(peaks))
    sizes = [
        share.memory_bytes(number) if of == rank else -1
        for share, number, of in zip(shares, aim.in_flight, aim.rank_of, strict=True)
    ]
    stage = sizes.index(max(sizes))
    start, end = ends[stage - 1] if stage else 0, ends[stage]
    number = aim.in_flight[stage]
    unit = max(range(start, end), key=lambda at: judge.chain.span(at, at + 1).memory_bytes(number))
    alone = judge.chain.span(unit, unit + 1).memory_bytes(number)
    least = "the least found is" if aim.shares_ranks else "the least that would do is"
    return OptionError(
        f"device_bytes is {aim.device_bytes:,}",
        f"{judge.graph.model} does not fit on {aim.num_ranks} ranks of that size: {least} "
        f"{peaks[rank]:,} bytes, for stage {stage} ({judge.chain.names[start]!r} to "
        f"{judge.chain.names[end - 1]!r}), of which {judge.chain.names[unit]!r} alone "
        f"holds {alone:,}",
        f"Allow {peaks[rank]:,} bytes, use more stages, keep fewer microbatches in flight, or "
        f"open {judge.chain.names[unit]!r} into finer units",
        about="device_bytes",
    )
