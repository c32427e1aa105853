# SPDX-License-Identifier: Apache-2.0
"""Data of a plan's picture, collected from the plan, its costs and its simulated step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from smdist.modelparallel.core.plan import Forecast, Plan
from smdist.modelparallel.core.plan.number_format import number, time_unit
from smdist.modelparallel.core.simulate import Timeline
from smdist.modelparallel.picture.run_sheet import spans_of
from smdist.modelparallel.picture.sheet import MemoryBar, Sheet, StageBar, UnitBar

_VISIBLE: Final = 1e-6  # fraction of a stage's time; smaller differences are rounding errors
_ALIKE: Final = 0.01  # modules whose times differ by less than this fraction count as equal


def sheet_of(
    plan: Plan, forecast: Forecast, unit_seconds: Mapping[str, float], timeline: Timeline
) -> Sheet:
    """Return what the picture of a plan shows: titles, and bars for stages, memory and time.

    Args:
        plan: Plan to draw.
        forecast: Forecast of this plan.
        unit_seconds: Seconds of the forward and backward pass of one microbatch, by name of the
            unit (undivided module).
        timeline: Simulated step of the plan.
    """
    rank_of = timeline.schedule.rank_of
    return Sheet(
        title=_title(plan),
        subtitle=_subtitle(forecast),
        largest=_largest(unit_seconds),
        stages=tuple(
            _stage_bar(rank_of[stage], units, unit_seconds, forecast.stages[stage].seconds)
            for stage, units in enumerate(plan.stages)
        ),
        memory=tuple(
            MemoryBar(
                state_bytes=each.state_bytes,
                activation_bytes=each.activation_bytes,
                receive_bytes=each.receive_bytes,
                workspace_bytes=each.workspace_bytes,
            )
            for each in forecast.memory
        ),
        limit_bytes=forecast.memory_limit_bytes,
        spans=tuple(spans_of(timeline)),
    )


def _stage_bar(
    rank: int, units: Sequence[str], unit_seconds: Mapping[str, float], seconds: float
) -> StageBar:
    """Return the bar of one stage.

    Time that belongs to no unit becomes the bar's `between_seconds`, unless it is too short to be
    seen.

    Args:
        rank: Rank of the stage.
        units: Names of the stage's units (undivided modules).
        unit_seconds: Seconds of each unit for one microbatch, by name.
        seconds: Seconds of the whole stage for one microbatch.
    """
    bars = tuple(UnitBar(name=unit, seconds=unit_seconds.get(unit, 0.0)) for unit in units)
    between = seconds - sum(bar.seconds for bar in bars)
    is_visible = between > _VISIBLE * seconds
    return StageBar(rank=rank, units=bars, between_seconds=between if is_visible else 0.0)


def _title(plan: Plan) -> str:
    parts = [f"{plan.model} on {number(plan.world_size, 'rank')}"]
    parts.append(number(len(plan.stages), "stage"))
    if plan.data_parallel_degree > 1:
        parts.append(f"{plan.data_parallel_degree} pipelines")
    parts.append(f"schedule {plan.schedule}")
    size = plan.microbatch_size
    parts.append(f"{number(plan.num_microbatches, 'microbatch')} of {size}")
    return ", ".join(parts)


def _subtitle(forecast: Forecast) -> str:
    scale, unit = time_unit(forecast.step_seconds)
    return (
        f"step {forecast.step_seconds / scale:.3g} {unit}, {forecast.samples_per_second:,.4g}"
        f" samples/s, ranks wait {forecast.bubble_fraction:.1%} of the pipeline's time; costs"
        f" {forecast.source} for {forecast.device}"
    )


def _largest(unit_seconds: Mapping[str, float]) -> str:
    """Return the name of the slowest unit, or "" if several are equally slow."""
    ordered = sorted(unit_seconds, key=lambda name: unit_seconds[name], reverse=True)
    if not ordered or unit_seconds[ordered[0]] == 0:
        return ""
    first = unit_seconds[ordered[0]]
    is_alone = len(ordered) == 1 or unit_seconds[ordered[1]] < first * (1 - _ALIKE)
    return ordered[0] if is_alone else ""
