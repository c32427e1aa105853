# SPDX-License-Identifier: Apache-2.0
"""Choice by hand of the modules that are split: `smp.tensor_parallelism` and its relatives.

The choice is the mark of a module (`program/module_marks.py`). A module without one has the mark of
the module around it. If any module of a model is marked True, only modules that are marked
True are split; otherwise all are split that can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.torch.program.split_marks import SPLIT_MARK, option_faults


@contextmanager
def tensor_parallelism(enabled: bool = True, **options: Any) -> Iterator[None]:
    """Choose whether the modules that are created in the block are split over ranks.

    In nested blocks, the innermost one counts.

    Args:
        enabled: True to split the modules where possible, False to keep them whole.
        options: Options of SMP's own layers, which may be False and are refused otherwise: modules
            are split as they are.

    Raises:
        OptionError: `enabled` is no bool, or an option is unknown or not False.
    """
    _require("smp.tensor_parallelism", enabled, options)
    with SPLIT_MARK.on_new_modules(enabled):
        yield


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **options: Any) -> None:
    """Choose whether a module, with all modules inside it without a choice, is split over ranks.

    The choice counts if it is made before the first step.

    Args:
        module: Module of the model.
        enabled: True to split the module where possible, False to keep it whole.
        options: Options of SMP's own layers, which may be False and are refused otherwise: modules
            are split as they are.

    Raises:
        OptionError: `module` is not a module, `enabled` is no bool, or an option is unknown or not
            False.
    """
    require(
        isinstance(module, nn.Module),
        what=f"module is {type(module).__name__}",
        why="set_tensor_parallelism chooses whether a torch.nn.Module is split",
        hint="Pass a module of the model",
        about="module",
    )
    _require("smp.set_tensor_parallelism", enabled, options)
    SPLIT_MARK.set(module, enabled)


def chosen(model: nn.Module) -> dict[str, bool]:
    """Return for each module of a model, by name, whether the user wants it to be split."""
    marks = {name: SPLIT_MARK.get(module) for name, module in model.named_modules()}
    default = not any(mark is True for mark in marks.values())
    found: dict[str, bool] = {}
    for name, mark in marks.items():
        around = found.get(name.rpartition(".")[0], default) if name else default
        found[name] = around if mark is None else mark
    return found


def _require(function: str, enabled: object, options: dict[str, Any]) -> None:
    faults = [*option_faults(function, options)]
    if not isinstance(enabled, bool):
        what = f"enabled is {enabled!r}"
        faults.append(
            OptionError(what, "it has to be a bool", "Pass True or False", about="enabled")
        )
    raise_all(faults)
