# SPDX-License-Identifier: Apache-2.0
"""Limits of the pipeline schedules, such as how many stages on every rank a schedule needs.

The SDK checks requests with these limits, because the runtime may not be installed. The runtime
uses the same limits. A test checks that the schedules in this module have the same names as those
in `smdist.modelparallel.core.schedule.SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sagemaker_dist.errors import OptionError

AUTO: Final = "auto"
SPLIT_BACKWARD: Final = ("zero_bubble", "zero_bubble_v", "dualpipe_v")  # weights' gradients apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Limits of one pipeline schedule.

    Attributes:
        least_virtual_stages: Smallest number of stages on each rank.
        most_virtual_stages: Largest number of stages on each rank; None for any number.
        takes_active_microbatches: True if the schedule uses the option `active_microbatches`.
        least_microbatches_per_rank: Smallest ratio of the number of microbatches to the number of
            ranks that hold one model; 0 for no limit.
    """

    least_virtual_stages: int = 1
    most_virtual_stages: int | None = 1
    takes_active_microbatches: bool = False
    least_microbatches_per_rank: int = 0

    def takes_virtual_stages(self, number: int) -> bool:
        """Return whether the schedule allows `number` stages on each rank."""
        most = self.most_virtual_stages
        return number >= self.least_virtual_stages and (most is None or number <= most)


_LOOP: Final = Pipeline(least_virtual_stages=2, most_virtual_stages=None)
PIPELINES: Final[Mapping[str, Pipeline]] = MappingProxyType(
    {
        "simple": Pipeline(),
        "interleaved": Pipeline(takes_active_microbatches=True),
        "1f1b": Pipeline(),
        "interleaved_1f1b": _LOOP,
        "looped_bfs": _LOOP,
        "zero_bubble": Pipeline(most_virtual_stages=None),
        "zero_bubble_v": Pipeline(least_virtual_stages=2, most_virtual_stages=2),
        "dualpipe_v": Pipeline(
            least_virtual_stages=2, most_virtual_stages=2, least_microbatches_per_rank=2
        ),
    }
)


def pipeline_faults(
    name: str, *, virtual_stages: int | None, active_microbatches: int | None
) -> Iterator[OptionError]:
    """Yield a fault for `virtual_stages` or `active_microbatches` if the schedule cannot use it.

    An option that is None is not checked. If `name` is "auto", nothing is checked.
    """
    kind = PIPELINES.get(name)
    if kind is None:
        return
    if active_microbatches is not None and not kind.takes_active_microbatches:
        yield OptionError(
            f"active_microbatches is {active_microbatches} with pipeline={name!r}",
            "the order of this schedule already sets how many microbatches are in flight",
            "Leave active_microbatches out, or pass pipeline='interleaved'",
            about="active_microbatches",
            kind="conflict",
        )
    if virtual_stages is not None and not kind.takes_virtual_stages(virtual_stages):
        least = kind.least_virtual_stages
        has = f"{least}" if kind.most_virtual_stages == least else f"{least} or more"
        stages = "stage" if has == "1" else "stages"
        fitting = [each for each, k in PIPELINES.items() if k.takes_virtual_stages(virtual_stages)]
        yield OptionError(
            f"virtual_stages is {virtual_stages} with pipeline={name!r}",
            f"the schedule needs {has} {stages} on each rank",
            f"Pass virtual_stages={least}, or pipeline={' or '.join(map(repr, fitting))}",
            about="virtual_stages",
            kind="conflict",
        )


def microbatch_faults(name: str, *, degree: int, microbatches: int) -> Iterator[OptionError]:
    """Yield a fault if the schedule `name` needs more microbatches than `microbatches`.

    Args:
        name: Name of the schedule, such as "1f1b".
        degree: Number of ranks over which one model is split.
        microbatches: Number of microbatches in a replica's batch.
    """
    least = PIPELINES[name].least_microbatches_per_rank * degree if name in PIPELINES else 0
    if microbatches < least:
        yield OptionError(
            f"microbatches is {microbatches} with pipeline={name!r}",
            f"the schedule needs at least {least} on {degree} ranks",
            f"Pass microbatches={least} or more, or pipeline='1f1b'",
            about="microbatches",
            kind="conflict",
        )
