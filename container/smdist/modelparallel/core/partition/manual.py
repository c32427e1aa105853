# SPDX-License-Identifier: Apache-2.0
"""Stages that users choose by marks on modules.

A unit goes to the stage of its own mark; without one, to the stage of the nearest marked module
around it; otherwise to `default_partition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.graph import Graph, Node
from smdist.modelparallel.core.note import IGNORED_MARKS, Note
from smdist.modelparallel.core.placement import placed_units

_SHOWN: Final = 6  # largest number of names in one error


def stages_of_marks(
    graph: Graph, marks: Mapping[str, int], *, num_stages: int, default_partition: int | None
) -> dict[str, int]:
    """Return the stage of each unit, by its name, for `auto_partition=False`.

    Stages need not follow the order of execution, as long as values only go forward: `place`
    checks that.

    Args:
        graph: Graph of the model.
        marks: Stages by names of modules; "" is the model.
        num_stages: Number of stages.
        default_partition: Stage of units without a mark; required if such units exist.

    Raises:
        OptionError: A mark or the default is not a stage, a unit has neither, a stage gets no
            unit, or a mark cuts a unit in two; all such faults at once.
    """
    units = placed_units(graph)
    nearest = {unit.name: _nearest(marks, unit.module, default_partition) for unit in units}
    bare = [name for name, stage in nearest.items() if stage is None]
    raise_all([*_number_faults(marks, num_stages, default_partition), *_bare(bare, num_stages)])
    stage_of = {name: stage for name, stage in nearest.items() if stage is not None}
    raise_all([*_cut_units(units, stage_of, marks), *_unused(graph, stage_of, num_stages)])
    return stage_of


def note_on_marks(marks: Mapping[str, int]) -> Note | None:
    """Return the note that `auto_partition` ignores the marks, or None if there are no marks."""
    if not marks:
        return None
    return Note(
        IGNORED_MARKS,
        f"{len(marks)} modules are marked for stages, such as {next(iter(marks))!r}: the marks "
        "have no effect with auto_partition. Pass auto_partition=False to place units by them",
    )


def _nearest(marks: Mapping[str, int], module: str, default: int | None) -> int | None:
    while module and module not in marks:
        module = module.rpartition(".")[0]
    return marks.get(module, default)


def _number_faults(
    marks: Mapping[str, int], num_stages: int, default: int | None
) -> Iterator[OptionError]:
    stages = f"the stages are 0 to {num_stages - 1}"
    if default is not None and not _is_stage(default, num_stages):
        yield OptionError(
            f"default_partition is {default!r}",
            stages,
            "Name one of them",
            about="default_partition",
        )
    for module, stage in marks.items():
        if not _is_stage(stage, num_stages):
            yield OptionError(
                f"{module or 'the model'!r} is marked for stage {stage!r}",
                stages,
                "Mark it for one of them, or use more stages",
            )


def _bare(units: list[str], num_stages: int) -> Iterator[OptionError]:
    if units:
        more = f" and {len(units) - _SHOWN} more" if len(units) > _SHOWN else ""
        last = f" to {num_stages - 1}" if num_stages > 1 else ""
        yield OptionError(
            "auto_partition is False without a default_partition",
            f"units without a mark need a stage: {', '.join(units[:_SHOWN])}{more}",
            f"Mark them, or pass default_partition: a stage from 0{last}",
            about="auto_partition",
        )


def _is_stage(stage: object, num_stages: int) -> bool:
    return isinstance(stage, int) and not isinstance(stage, bool) and 0 <= stage < num_stages


def _cut_units(
    units: tuple[Node, ...], stage_of: Mapping[str, int], marks: Mapping[str, int]
) -> Iterator[OptionError]:
    for unit in units:
        for module, stage in marks.items():
            if module.startswith(f"{unit.module}.") and stage != stage_of[unit.name]:
                yield OptionError(
                    f"{module!r} is marked for stage {stage}",
                    f"it is inside of the unit {unit.name!r}, which is not cut and is on stage "
                    f"{stage_of[unit.name]}",
                    f"Give both one stage, or open {unit.module!r} into finer units",
                )


def _unused(graph: Graph, stage_of: Mapping[str, int], num_stages: int) -> Iterator[OptionError]:
    for stage in sorted(set(range(num_stages)) - set(stage_of.values())):
        yield OptionError(
            f"stage {stage} has no unit",
            f"no mark on a unit of {graph.model}, and not default_partition, puts one there",
            "Mark a module for it or use fewer stages",
        )
