# SPDX-License-Identifier: Apache-2.0
"""Assignment of modules to stages by hand: `smp.partition` and `smp.set_partition`.

The stage's number is the mark of a module (`module_marks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from sagemaker_dist.errors import require
from smdist.modelparallel.torch.program.module_marks import ModuleMark

_mark: ModuleMark[int] = ModuleMark("_smp_partition")


@contextmanager
def partition(stage: int) -> Iterator[None]:
    """Assign every module that is created in the block to a stage.

    In nested blocks, the innermost one counts. `smp.plan` and `smp.parallelize` use the stages only
    with `auto_partition=False`.

    Args:
        stage: Number of the stage, from 0.

    Raises:
        OptionError: `stage` is not an integer of 0 or more.
    """
    _require_stage(stage)
    with _mark.on_new_modules(stage):
        yield


def set_partition(module: nn.Module, stage: int) -> None:
    """Assign a module to a stage, with all modules inside it that have no stage of their own.

    `smp.plan` and `smp.parallelize` use the stage only with `auto_partition=False`.

    Args:
        module: Module of the model.
        stage: Number of the stage, from 0.

    Raises:
        OptionError: `module` is not a module, or `stage` is not an integer of 0 or more.
    """
    require(
        isinstance(module, nn.Module),
        what=f"module is {type(module).__name__}",
        why="set_partition assigns a torch.nn.Module to a stage",
        hint="Pass a module of the model",
        about="module",
    )
    _require_stage(stage)
    _mark.set(module, stage)


def marks_of(model: nn.Module) -> dict[str, int]:
    """Return the stages that were assigned to modules of a model by hand, by the module's name.

    The name of the model itself is "". A module is left out if it has the stage of the module
    around it.
    """
    marks: dict[str, int] = {}
    around: dict[str, int | None] = {}
    for name, module in model.named_modules():
        outer = around.get(name.rpartition(".")[0]) if name else None
        mark = _mark.get(module)
        around[name] = outer if mark is None else mark
        if mark is not None and mark != outer:
            marks[name] = mark
    return marks


def around_marks(marks: Mapping[str, int]) -> frozenset[str]:
    """Return the names of all modules that contain a module with a stage assigned by hand.

    These modules must be divided. A module that is not divided is on one stage as a whole, and so
    the module inside it could not be on another stage.

    Args:
        marks: Assigned stages, by the module's name.
    """
    parts = [name.split(".") for name in marks]
    return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each)))


def _require_stage(stage: object) -> None:
    require(
        isinstance(stage, int) and not isinstance(stage, bool) and stage >= 0,
        what=f"stage is {stage!r}",
        why="stages are numbered from 0",
        hint="Pass an integer of 0 or more",
        about="stage",
    )
