# SPDX-License-Identifier: Apache-2.0
"""Grid of the schedules in tests: every kind, on 2 to 16 ranks."""

from collections.abc import Iterator

from smdist.modelparallel.core.schedule import SCHEDULES, Schedule, Shape, make_schedule

NAMED = [
    (name, virtual_stages)
    for name, kind in SCHEDULES.items()
    for virtual_stages in (1, 2, 4)
    if kind.takes_virtual_stages(virtual_stages)
]


def grid(name: str, virtual_stages: int) -> Iterator[Shape]:
    """Yield shapes with p from 2 to 16 and m from p to 4p: every m up to p = 4, then only edges."""
    for ranks in range(2, 17):
        least = max(1, SCHEDULES[name].least_microbatches_per_rank) * ranks
        for microbatches in _microbatches(ranks, virtual_stages):
            if microbatches >= least:
                yield Shape(
                    num_ranks=ranks, num_microbatches=microbatches, virtual_stages=virtual_stages
                )


def _microbatches(ranks: int, virtual_stages: int) -> list[int]:
    if ranks <= 4:
        return list(range(ranks, 4 * ranks + 1))
    if ranks <= 8 and virtual_stages < 4:
        return [ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 4 * ranks]
    return [ranks, 4 * ranks] if ranks in (8, 16) else [ranks + 1, 2 * ranks - 1 + ranks % 3]


def made(name: str, shape: Shape) -> Schedule:
    """Return the schedule of one point on the grid."""
    return make_schedule(
        name,
        num_ranks=shape.num_ranks,
        num_microbatches=shape.num_microbatches,
        virtual_stages=shape.virtual_stages,
    )
