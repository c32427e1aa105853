# SPDX-License-Identifier: Apache-2.0
"""Division of a chain of units into stages that fit in memory, and the error if none fits."""

from __future__ import annotations

from dataclasses import replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition.chain import Chain
from smdist.modelparallel.core.partition.dynamic_programming import cut
from smdist.modelparallel.core.partition.partition_options import PartitionOptions
from smdist.modelparallel.core.partition.refine import improve
from smdist.modelparallel.core.partition.scoring import Scorer

BISECTION_STEPS = 8
"""Number of bisection steps in the search for the memory limit of a stage."""


class DoesNotFitError(OptionError):
    """Error of a model that does not fit in the memory of the ranks.

    Attributes:
        least_bytes: Smallest memory of a rank that was found to be enough.
    """

    default_kind = "memory"
    least_bytes = 0


def best_cuts(scorer: Scorer) -> tuple[int, ...]:
    """Return the ends of the best stages that fit in memory, as positions in the chain of units.

    Args:
        scorer: Scorer with the chain of units and the options of the partition.

    Raises:
        DoesNotFitError: No stages fit in `device_bytes`.
    """
    chain, options = scorer.chain, scorer.options
    ends = cut(chain, options, options.device_bytes)
    if ends is not None and options.has_virtual_stages and scorer.score_cuts(ends).excess_bytes:
        ends = _cuts_within_ranks(scorer)
    if ends is None:
        ends = _least_memory_cuts(chain, options)
        if options.has_virtual_stages:
            ends = improve(scorer, ends)
        if scorer.score_cuts(ends).excess_bytes:
            raise _does_not_fit(scorer, ends)
    if options.has_virtual_stages or scorer.objective is not None:
        ends = improve(scorer, ends)
    return ends


def _cuts_within_ranks(scorer: Scorer) -> tuple[int, ...] | None:
    """Return the best stages if a rank has several, which must fit in its memory together.

    The search tries memory limits for a single stage, by bisection.

    Returns:
        For each stage, the position after its last module. None if no such stages were found.
    """
    options = scorer.options
    assert options.device_bytes is not None
    most = max(options.rank_of.count(rank) for rank in range(options.num_ranks))
    low, high = options.device_bytes // most, options.device_bytes
    best = cut(scorer.chain, options, low)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) // 2
        ends = cut(scorer.chain, options, middle)
        if ends is None:
            low = middle
        elif scorer.score_cuts(ends).excess_bytes:
            high = middle
        else:
            low, best = middle, ends
    return best


def _least_memory_cuts(chain: Chain, options: PartitionOptions) -> tuple[int, ...]:
    """Return the division into stages whose fullest stage holds the fewest bytes.

    The result has, for each stage, the position after its last module in the chain.
    """
    ends = cut(chain, replace(options, memory_weight=1.0, bytes_unit=1.0), None)
    assert ends is not None  # without a limit, every division fits
    return ends


def _does_not_fit(scorer: Scorer, ends: tuple[int, ...]) -> DoesNotFitError:
    """Return the error that no partition fits in `device_bytes`.

    Args:
        scorer: Scorer with the chain of units and the options of the partition.
        ends: Ends, in the chain, of the stages that need the least memory; the error names them.
    """
    options = scorer.options
    assert options.device_bytes is not None
    placement = scorer.place(scorer.assign(ends))
    stage_costs = scorer.stage_costs(placement)
    peaks = scorer.peaks(stage_costs, placement)
    rank = peaks.index(max(peaks))
    sizes = [
        stage_cost.memory_bytes(number) if of == rank else -1
        for stage_cost, number, of in zip(
            stage_costs, options.in_flight, options.rank_of, strict=True
        )
    ]
    stage = sizes.index(max(sizes))
    start, end = ends[stage - 1] if stage else 0, ends[stage]
    number = options.in_flight[stage]
    unit = max(range(start, end), key=lambda at: scorer.chain.span(at, at + 1).memory_bytes(number))
    alone = scorer.chain.span(unit, unit + 1).memory_bytes(number)
    least = "the best division found needs" if options.has_virtual_stages else "it needs at least"
    error = DoesNotFitError(
        f"device_bytes is {options.device_bytes:,}",
        f"{scorer.graph.model} does not fit in the memory of {options.num_ranks} ranks, because "
        f"{least} {peaks[rank]:,} bytes on the fullest rank. This rank has stage {stage} "
        f"({scorer.chain.names[start]!r} to {scorer.chain.names[end - 1]!r}). The module "
        f"{scorer.chain.names[unit]!r} alone needs {alone:,} bytes",
        f"Pass device_bytes of at least {peaks[rank]:,}, use more stages, keep fewer microbatches "
        f"in flight, or divide {scorer.chain.names[unit]!r} into smaller modules",
        about="device_bytes",
    )
    error.least_bytes = peaks[rank]
    return error
