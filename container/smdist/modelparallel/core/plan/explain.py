# SPDX-License-Identifier: Apache-2.0
"""Explanation of a plan as text, for readers who are new to pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from textwrap import wrap
from typing import Final

from smdist.modelparallel.core.note import NOT_SEARCHED
from smdist.modelparallel.core.plan.forecast import Forecast, Rejected
from smdist.modelparallel.core.plan.number_format import (
    count,
    digits,
    number,
    seconds,
    share,
    size,
    way,
)
from smdist.modelparallel.core.plan.plan_data import PlanData
from smdist.modelparallel.core.plan.text_table import table
from smdist.modelparallel.core.schedule import SCHEDULES

WIDTH: Final = 100
_VARIES: Final = 1.05  # measured times differ between runs by up to this factor
_GROUPS: Final = {
    "slower": "Slower, or not faster:",
    "memory": "Too large for memory:",
    "impossible": "Not possible, or not useful:",
}
_DECISIONS: Final = {
    "degrees": "Ranks of a pipeline",
    "schedule": "Schedule",
    "microbatches": "Microbatches",
}


def explain(plan: PlanData, predicted: str = "") -> str:
    """Return the explanation of a plan as text, with at most 100 letters on a line.

    Args:
        plan: The plan.
        predicted: Sentences about the time of a step in place of those of the plan's forecast.
    """
    sections = [_head(plan, predicted), _why(plan), _stages(plan), _memory(plan), _time(plan)]
    sections += [_ties(plan), _rejected(plan), _notes(plan)]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def summary(plan: PlanData) -> str:
    """Return a short text: degrees, schedule, time of a step, stages, and what was not searched."""
    left_out = [note.text for note in plan.notes if note.kind == NOT_SEARCHED]
    sections = [_head(plan), _stages(plan), chain(*map(_text, left_out))]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _fresh(plan: PlanData) -> Forecast | None:
    """Return the plan's predicted time and memory; None if there are none.

    The result is also None if the plan was edited after the prediction.
    """
    return None if plan.is_stale else plan.forecast


def _head(plan: PlanData, predicted: str = "") -> Iterator[str]:
    yield f"Plan for {plan.model} on {number(plan.world_size, 'rank')}"
    pipelines = number(plan.data_parallel_degree, "pipeline")
    ranks = number(plan.pipeline_parallel_degree, "rank")
    each = " each" if plan.num_microbatches > 1 else ""
    yield from _text(
        f"{pipelines} of {ranks}, schedule {_schedule(plan)}, a batch of {plan.batch_size} as "
        f"{number(plan.num_microbatches, 'microbatch')} of "
        f"{number(plan.microbatch_size, 'sample')}{each}."
    )
    yield from _shards(plan)
    forecast = _fresh(plan)
    if forecast is not None and predicted:
        yield from _text(predicted)
    elif forecast is not None:
        source = "was measured" if forecast.source == "measured" else "was estimated"
        yield from _text(
            f"A step takes {seconds(forecast.step_seconds)}, which is "
            f"{digits(forecast.samples_per_second)} samples per second. The cost of each module "
            f"{source} for {forecast.device}; the rest is a simulation."
        )
    elif plan.forecast is not None:
        yield from _text(
            "This plan was edited after it was made. Its forecast, ties, notes and rejected "
            "alternatives are no longer valid, and are not shown."
        )


def _shards(plan: PlanData) -> Iterator[str]:
    """Yield lines about state that replicas divide, and about checkpointed modules."""
    if plan.sharding != "none":
        what = "all state" if plan.sharding == "full" else "optimizer state"
        ranks = number(plan.shard_degree or plan.data_parallel_degree, "rank")
        often = " in each microbatch" if plan.gradient_reduction == "microbatch" else " once a step"
        yield from _text(f"Shards of {what} over {ranks}; gradients are reduced{often}.")
    if plan.tensor_parallel_degree > 1:
        ranks = number(plan.tensor_parallel_degree, "rank")
        yield from _text(f"Each layer is split over {ranks}; these ranks count as one below.")
    if plan.offload_activations:
        yield from _text("Activations are in the host's memory between the passes.")
    if plan.checkpointed:
        first = plan.checkpointed[0]
        yield from _text(
            f"Activations of {number(len(plan.checkpointed), 'module')} are computed again in"
            f" backward passes, the first of them {first}."
        )


def _why(plan: PlanData) -> Iterator[str]:
    if _fresh(plan) is None or not plan.rejected:
        return
    yield "Why"
    for differs, what in _DECISIONS.items():
        others = [each for each in plan.rejected if each.differs == differs]
        if others:
            yield from _item(f"{what}: {_chosen(plan, differs)}. {_next_best(others)}")
    yield from _close(plan)


def _close(plan: PlanData) -> Iterable[str]:
    """Return lines about rejected plans whose predicted speed is within 5 % of this plan's.

    Two measurements of the same model differ by up to 5 %, so another measurement could lead to
    another plan. The result is empty if there are no such plans, or if the costs were estimated.
    """
    forecast = plan.forecast
    assert forecast is not None
    fast = [each.samples_per_second or 0.0 for each in plan.rejected]
    near = sum(each * _VARIES >= forecast.samples_per_second for each in fast)
    if forecast.source != "measured" or not near:
        return ()
    which = "One rejected plan is" if near == 1 else f"{near} rejected plans are"
    return _item(
        f"{which} within {100 * (_VARIES - 1):.0f} % of this one. Measured times differ by as much "
        "from one run to the next, so after another measurement another plan may be chosen."
    )


def _chosen(plan: PlanData, differs: str) -> str:
    if differs == "degrees":
        if plan.pipeline_parallel_degree == 1:
            return "1, because the whole model fits on one rank, and no rank waits for another"
        pipelines = number(plan.data_parallel_degree, "such pipeline")
        return f"{plan.pipeline_parallel_degree}, and {pipelines}"
    if differs == "schedule":
        does, *_ = SCHEDULES[plan.schedule].summary.partition(" (")  # drops names used in papers
        return f"{plan.schedule}, {does}"
    return str(plan.num_microbatches)


def _next_best(others: Sequence[Rejected]) -> str:
    full = [each for each in others if each.group == "memory"]
    fast = [each for each in others if each.samples_per_second is not None]
    sentences = []
    if fast:
        best = max(fast, key=lambda each: each.samples_per_second or 0.0)
        sentences.append(f"The next best is {best.what}: {best.why}.")
    if len(full) == 1:
        sentences.append(f"Too large for memory is {full[0].what}: {full[0].why}.")
    elif full:
        sentences.append(f"{len(full)} others do not fit in memory.")
    return " ".join(sentences) or "The others that were tried are not possible."


def _stages(plan: PlanData) -> Iterator[str]:
    yield "Stages"
    forecast = _fresh(plan)
    head = ["stage", "rank", "modules", "first", "last"]
    rows = [
        [str(stage), str(rank), str(len(units)), units[0] if units else "", _last(units)]
        for stage, (rank, units) in enumerate(zip(_ranks(plan), plan.stages, strict=False))
    ]
    if forecast is not None:
        head += ["forward", "backward", "of all", "parameters"]
        total = sum(each.seconds for each in forecast.stages) or 1.0
        for row, each in zip(rows, forecast.stages, strict=True):
            row += [seconds(each.forward_seconds), seconds(each.backward_seconds)]
            row += [share(each.seconds / total), count(each.num_parameters)]
    yield from table(head, rows, left=("first", "last"), width=WIDTH)


def _memory(plan: PlanData) -> Iterator[str]:
    forecast = _fresh(plan)
    if forecast is None:
        return
    limit = forecast.memory_limit_bytes
    allowed = f" (limit {size(limit)})" if limit else ""
    yield f"Largest memory of each rank of a pipeline{allowed}"
    head = ["rank", "state", "activations", "received", "workspace", "total"]
    rows = [
        [
            str(rank),
            size(each.state_bytes),
            size(each.activation_bytes),
            size(each.receive_bytes),
            size(each.workspace_bytes),
            size(each.total_bytes),
        ]
        for rank, each in enumerate(forecast.memory)
    ]
    if limit:
        head.append("of limit")
        for row, each in zip(rows, forecast.memory, strict=True):
            row.append(share(each.total_bytes / limit))
    yield from table(head, rows, left=(), width=WIDTH)
    yield from _text(
        "State is weights, gradients and optimizer state. Activations are those of all "
        "microbatches in flight, kept from forward to backward passes.",
        indent="  ",
    )


def _time(plan: PlanData) -> Iterator[str]:
    forecast = _fresh(plan)
    if forecast is None:
        return
    yield "Time"
    if plan.pipeline_parallel_degree > 1:
        yield from _item(
            f"Bubble: ranks wait {share(forecast.bubble_fraction)} of the pipeline's time: for the "
            "first microbatch, for slower stages, and at the end for other ranks."
        )
        loads = _loads(plan, forecast)
        slowest = loads.index(max(loads))
        over = max(loads) * len(loads) / sum(loads) - 1 if sum(loads) else 0.0
        uneven = (
            f"{share(over)} longer than an even share"
            if over > 0.0005
            else "all ranks take the same time"
        )
        yield from _item(
            f"Slowest rank: {slowest}, {uneven}. The slowest module is {forecast.bottleneck}."
        )
    if plan.data_parallel_degree > 1:
        yield from _item(
            f"Reduction: {seconds(forecast.reduce_seconds)} of a step, after the last backward "
            f"pass, for summing gradients over {plan.data_parallel_degree} pipelines."
        )


def _loads(plan: PlanData, forecast: Forecast) -> list[float]:
    """Return the seconds of one microbatch on each rank of a pipeline, by rank."""
    loads = [0.0] * plan.pipeline_parallel_degree
    for rank, stage in zip(plan.actions.rank_of, forecast.stages, strict=True):
        loads[rank] += stage.seconds
    return loads


def _ties(plan: PlanData) -> Iterator[str]:
    if not plan.ties or plan.is_stale:
        return
    yield "Tied parameters"
    for tie in plan.ties:
        stages = ", ".join(map(str, tie.stages))
        ranks = {plan.actions.rank_of[stage] for stage in tie.stages}
        kept = (
            f"All these stages are on rank {min(ranks)}, which holds the parameter once."
            if len(ranks) == 1
            else "All copies start with the same values, and their gradients are summed before "
            "every update, so the copies stay equal."
        )
        yield from _item(f"{tie.parameter} is on stages {stages}. {kept}")


def _rejected(plan: PlanData) -> Iterator[str]:
    if not plan.rejected or plan.is_stale:
        return
    yield "Rejected"
    for group, head in _GROUPS.items():
        found = [each for each in plan.rejected if each.group == group]
        if found:
            yield f"  {head}"
            ordered = sorted(found, key=lambda each: -(each.samples_per_second or 0.0))
            for each in ordered:
                took = f" ({seconds(each.step_seconds)} a step)" if each.step_seconds else ""
                yield from _item(f"{each.what}{took}: {each.why}.", indent="    ")


def _notes(plan: PlanData) -> Iterator[str]:
    if not plan.notes or plan.is_stale:
        return
    yield "Notes"
    for note in plan.notes:
        yield from _item(note.text if note.text.endswith(".") else f"{note.text}.")


def _schedule(plan: PlanData) -> str:
    return way(plan.schedule, plan.virtual_stages, plan.active_microbatches)


def _ranks(plan: PlanData) -> tuple[int, ...]:
    """Return the rank of each stage, by stage.

    An edited plan can have more stages than its schedule. The rank of these stages is -1.
    """
    return (*plan.actions.rank_of, *[-1] * len(plan.stages))


def _last(units: Sequence[str]) -> str:
    return units[-1] if len(units) > 1 else ""


def _text(text: str, indent: str = "") -> Iterable[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _item(text: str, indent: str = "  ") -> Iterable[str]:
    return wrap(text, WIDTH, initial_indent=f"{indent}* ", subsequent_indent=f"{indent}  ")
