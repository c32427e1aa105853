# SPDX-License-Identifier: Apache-2.0
"""Rules that say what to change where a plan and a run differ.

A time differs if it is off by more than 15 %, and by more than 2 % of the step; memory if it is off
by more than 10 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from smdist.modelparallel.core.comparison.comparison_parts import (
    BUBBLE,
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    STEP,
    Advice,
    Part,
)
from smdist.modelparallel.core.plan import Plan

_TIME: Final = 0.15
_OF_STEP: Final = 0.02
_MEMORY: Final = 0.10
_UNEVEN: Final = 1.1  # largest ratio of the measured to the predicted imbalance of ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """Facts about a run that tell the causes of a long bubble apart.

    Attributes:
        message_seconds: Seconds of a step, averaged over ranks, in which a rank waited for a
            message that was being sent.
        imbalance: Seconds that the busiest rank computes, divided by the mean over ranks.
        predicted_imbalance: The same ratio of the plan.
        busiest: Number of the busiest rank in the pipeline.
    """

    message_seconds: float
    imbalance: float
    predicted_imbalance: float
    busiest: int


def advice(plan: Plan, parts: Sequence[Part], causes: Causes) -> tuple[Advice, ...]:
    """Return what to change; one entry of kind "none" if every measured part holds.

    Args:
        plan: Plan of the run.
        parts: All parts of the step.
        causes: Facts about the bubble.
    """
    by_name = {each.name: each for each in parts}
    found = list(_all(plan, by_name, causes))
    if found:
        return tuple(found)
    text = "The plan holds: every measured part is as predicted, within 15 % (memory: 10 %)."
    return (Advice(part=STEP, kind="none", text=text),)


def _all(plan: Plan, parts: dict[str, Part], causes: Causes) -> Iterator[Advice]:
    step = parts[STEP].predicted
    compute = parts[COMPUTE]
    if _excess(compute, step):
        takes = f"{compute.ratio or 0:.2f} times as long"
        yield Advice(
            part=COMPUTE,
            kind="calibrate",
            text=f"Compute takes {takes} as predicted: plan with --measure on such an instance,"
            " or with --calibration FILE from sagemaker-dist calibrate there. If the plan is from"
            " there, ranks had fewer threads than was measured (OMP_NUM_THREADS; torchrun sets it"
            " to 1), or other programs ran beside them.",
        )
    if _excess(_at_speed_of(parts[BUBBLE], compute), step) > 0:
        yield _bubble(plan, parts[BUBBLE], causes)
    if _excess(parts[COMMUNICATION], step) > 0:
        yield Advice(
            part=COMMUNICATION,
            kind="reduction",
            text="Sums of gradients are exposed for longer than predicted: sum gradients less often"
            " with more microbatches in a batch, or plan with the measured links of"
            " sagemaker-dist calibrate.",
        )
    memory = parts[MEMORY]
    if memory.ratio is not None and memory.ratio > 1 + _MEMORY:
        yield Advice(
            part=MEMORY,
            kind="memory",
            text=f"A rank needs {memory.ratio:.2f} times the predicted memory: plan with a smaller"
            " --device-memory, so that the margin is kept, or with --optimize memory.",
        )


def _at_speed_of(bubble: Part, compute: Part) -> Part:
    """Return a bubble with the prediction for ranks that compute as fast as they did.

    A bubble is made of computation on other ranks, so it is longer if all of them are slower.
    """
    return replace(bubble, predicted=bubble.predicted * max(1.0, compute.ratio or 1.0))


def _bubble(plan: Plan, part: Part, causes: Causes) -> Advice:
    """Return the advice for a bubble that is longer than predicted, by its largest cause."""
    assert part.measured is not None
    excess = part.measured - part.predicted
    if causes.message_seconds > excess / 2:
        text = (
            "Ranks wait for messages that are being sent: run sagemaker-dist calibrate and plan"
            " with --calibration FILE, or keep each pipeline inside one host."
        )
        return Advice(part=BUBBLE, kind="links", text=text)
    if causes.imbalance > _UNEVEN * causes.predicted_imbalance:
        text = (
            f"Rank {causes.busiest} of the pipeline computes {causes.imbalance:.2f} times the mean,"
            f" and {causes.predicted_imbalance:.2f} times was predicted: plan with --measure, which"
            " moves modules to other ranks."
        )
        return Advice(part=BUBBLE, kind="balance", text=text)
    more = 2 * plan.num_microbatches
    how = f"--microbatches={more}" if plan.batch_size % more == 0 else "a larger batch"
    text = (
        f"The bubble is longer than predicted, with {plan.num_microbatches} microbatches: use more"
        f" microbatches, such as {how}."
    )
    return Advice(part=BUBBLE, kind="microbatches", text=text)


def _excess(part: Part, step: float) -> float:
    """Return measured minus predicted seconds of a part; 0 if they are as good as equal."""
    if part.measured is None:
        return 0.0
    excess = part.measured - part.predicted
    return excess if abs(excess) > max(_TIME * part.predicted, _OF_STEP * step) else 0.0
