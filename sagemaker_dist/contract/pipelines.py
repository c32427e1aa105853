# SPDX-License-Identifier: Apache-2.0
"""What the runtime's schedules take, so that a request is checked where no runtime is installed.

The runtime's own table is `smdist.modelparallel.core.schedule.SCHEDULES`; a test holds the two
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sagemaker_dist.errors import OptionError

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What one schedule takes.

    Attributes:
        least_virtual_stages: Stages on each rank, at least.
        most_virtual_stages: Stages on each rank, at most; None for any number.
        takes_active_microbatches: Whether `active_microbatches` means something.
        least_microbatches_per_rank: It needs so many times the ranks in microbatches.
    """

    least_virtual_stages: int = 1
    most_virtual_stages: int | None = 1
    takes_active_microbatches: bool = False
    least_microbatches_per_rank: int = 0

    def takes_virtual_stages(self, number: int) -> bool:
        """Whether a rank can have so many stages."""
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
    """What a schedule of this name cannot use; "auto" takes what is there."""
    kind = PIPELINES.get(name)
    if kind is None:
        return
    if active_microbatches is not None and not kind.takes_active_microbatches:
        yield OptionError(
            f"active_microbatches is {active_microbatches} with pipeline={name!r}",
            "how many microbatches it has under way follows from its order",
            "Leave active_microbatches out, or pass pipeline='interleaved'",
        )
    if virtual_stages is not None and not kind.takes_virtual_stages(virtual_stages):
        least = kind.least_virtual_stages
        has = f"{least}" if kind.most_virtual_stages == least else f"{least} or more"
        fitting = [
            repr(each) for each, k in PIPELINES.items() if k.takes_virtual_stages(virtual_stages)
        ]
        yield OptionError(
            f"virtual_stages is {virtual_stages} with pipeline={name!r}",
            f"it has {has} on each rank",
            f"Pass virtual_stages={least}, or pipeline={' or '.join(map(repr, fitting))}",
        )


def microbatch_faults(name: str, *, degree: int, microbatches: int) -> Iterator[OptionError]:
    """Too few microbatches for a schedule of this name on so many ranks."""
    least = PIPELINES[name].least_microbatches_per_rank * degree if name in PIPELINES else 0
    if microbatches < least:
        yield OptionError(
            f"microbatches is {microbatches} with pipeline={name!r}",
            f"it needs {least} on {degree} ranks",
            f"Pass microbatches={least} or more, or pipeline='1f1b'",
        )
