# SPDX-License-Identifier: Apache-2.0
"""Stages that users choose with `smp.partition()` (marks), for `auto_partition=False`.

A unit is a module that is never divided. If a unit has a mark, the mark is its stage. Otherwise its
stage is the mark of the nearest module around it, or `default_partition` if there is no such mark.
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
    """Return the stage of each unit (undivided module) by its name, from the user's marks.

    The result may still send a value to an earlier stage; `place` checks that.

    Args:
        graph: Graph of the model.
        marks: Stage of each marked module, by the module's name; "" is the model.
        num_stages: Number of stages.
        default_partition: Stage of units without a mark; required if such units exist.

    Raises:
        OptionError: A mark names a stage that does not exist, a unit has no stage, a stage gets
            no unit, or a mark would divide a unit. All such faults are reported at once.
    """
    units = placed_units(graph)
    nearest = {unit.name: _nearest(marks, unit.module, default_partition) for unit in units}
    unmarked = [name for name, stage in nearest.items() if stage is None]
    raise_all(
        [
            *_number_faults(marks, num_stages, default_partition),
            *_missing_marks(unmarked, num_stages),
        ]
    )
    stage_of = {name: stage for name, stage in nearest.items() if stage is not None}
    raise_all([*_divided_units(units, stage_of, marks), *_unused(graph, stage_of, num_stages)])
    return stage_of


def note_on_marks(marks: Mapping[str, int]) -> Note | None:
    """Return a note that the user's stages are ignored; None if the user chose no stages.

    Args:
        marks: Stages that the user chose, by the module's name.
    """
    if not marks:
        return None
    return Note(
        IGNORED_MARKS,
        f"modules are marked for stages ({len(marks)}, such as {next(iter(marks))!r}). "
        "With auto_partition the marks have no effect: pass "
        "auto_partition=False to place modules by their marks",
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
            "Pass one of these stages",
            about="default_partition",
        )
    for module, stage in marks.items():
        if not _is_stage(stage, num_stages):
            yield OptionError(
                f"{module or 'the model'!r} is marked for stage {stage!r}",
                stages,
                "Mark the module for one of these stages, or use more stages",
                about=("marks", module),
            )


def _missing_marks(units: list[str], num_stages: int) -> Iterator[OptionError]:
    if units:
        more = f" and {len(units) - _SHOWN} more" if len(units) > _SHOWN else ""
        last = f" to {num_stages - 1}" if num_stages > 1 else ""
        yield OptionError(
            "auto_partition is False without a default_partition",
            f"smp.partition() sets no stage for these modules: {', '.join(units[:_SHOWN])}{more}",
            f"Set their stages with smp.partition(), or pass a stage from 0{last} as "
            "default_partition",
            about="auto_partition",
            kind="missing",
        )


def _is_stage(stage: object, num_stages: int) -> bool:
    return isinstance(stage, int) and not isinstance(stage, bool) and 0 <= stage < num_stages


def _divided_units(
    units: tuple[Node, ...], stage_of: Mapping[str, int], marks: Mapping[str, int]
) -> Iterator[OptionError]:
    for unit in units:
        for module, stage in marks.items():
            if module.startswith(f"{unit.module}.") and stage != stage_of[unit.name]:
                yield OptionError(
                    f"{module!r} is marked for stage {stage}",
                    f"it is inside the module {unit.name!r}, which runs as a whole on stage "
                    f"{stage_of[unit.name]}",
                    f"Mark both for the same stage, or divide {unit.module!r} into smaller modules",
                    about=("marks", module),
                    kind="conflict",
                )


def _unused(graph: Graph, stage_of: Mapping[str, int], num_stages: int) -> Iterator[OptionError]:
    for stage in sorted(set(range(num_stages)) - set(stage_of.values())):
        yield OptionError(
            f"stage {stage} has no module",
            f"each stage of {graph.model} needs at least one module, from smp.partition() or "
            "default_partition",
            "Put a module on this stage with smp.partition(), or use fewer stages",
            about=("stages", stage),
            kind="empty_stage",
        )
