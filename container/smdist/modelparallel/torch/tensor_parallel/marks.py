# SPDX-License-Identifier: Apache-2.0
"""Choice by hand of the modules that are split: `smp.tensor_parallelism` and its relatives.

The choice is stored in an attribute of the module, called its mark. A module without a mark has the
mark of the module around it. If any module of a model is marked True, only modules that are marked
True are split; otherwise all are split that can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Final

from torch import nn

from sagemaker_dist.errors import OptionError, raise_all, require

_MARK: Final = "_smp_tensor_parallelism"
_choices: ContextVar[tuple[bool, ...]] = ContextVar("choices", default=())
_lock = Lock()
_plain_init = nn.Module.__init__
_num_blocks = 0


@contextmanager
def tensor_parallelism(enabled: bool = True, **options: Any) -> Iterator[None]:
    """Choose whether the modules that are created in the block are split over ranks.

    In nested blocks, the innermost one counts.

    Args:
        enabled: True to split the modules where possible, False to keep them whole.
        options: Options of SMP's own layers, which are refused: modules are split as they are.

    Raises:
        OptionError: `enabled` is no bool, or there are options.
    """
    _require("smp.tensor_parallelism", enabled, options)
    token = _choices.set((*_choices.get(), enabled))
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)
        _choices.reset(token)


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **options: Any) -> None:
    """Choose whether a module, with all modules inside it without a choice, is split over ranks.

    The choice counts if it is made before the first step.

    Args:
        module: Module of the model.
        enabled: True to split the module where possible, False to keep it whole.
        options: Options of SMP's own layers, which are refused: modules are split as they are.

    Raises:
        OptionError: `module` is not a module, `enabled` is no bool, or there are options.
    """
    require(
        isinstance(module, nn.Module),
        what=f"module is {type(module).__name__}",
        why="set_tensor_parallelism chooses whether a torch.nn.Module is split",
        hint="Pass a module of the model",
        about="module",
    )
    _require("smp.set_tensor_parallelism", enabled, options)
    module.__dict__[_MARK] = enabled


def chosen(model: nn.Module) -> dict[str, bool]:
    """Return for each module of a model, by name, whether the user wants it to be split."""
    marks = {name: module.__dict__.get(_MARK) for name, module in model.named_modules()}
    default = not any(mark is True for mark in marks.values())
    found: dict[str, bool] = {}
    for name, mark in marks.items():
        around = found.get(name.rpartition(".")[0], default) if name else default
        found[name] = around if mark is None else mark
    return found


def _require(function: str, enabled: object, options: dict[str, Any]) -> None:
    faults = [
        OptionError(
            f"{function} got {name}={value!r}",
            "it is an option of SMP's own layers, and modules are split as they are here",
            f"Leave {name} out",
            about=name,
            kind="unsupported",
        )
        for name, value in options.items()
    ]
    if not isinstance(enabled, bool):
        what = f"enabled is {enabled!r}"
        faults.append(
            OptionError(what, "it has to be a bool", "Pass True or False", about="enabled")
        )
    raise_all(faults)


def _count_blocks(change: int) -> None:
    """Count the open blocks; while there is one, `nn.Module.__init__` marks new modules.

    Args:
        change: 1 when a block begins, -1 when it ends.
    """
    global _num_blocks, _plain_init
    with _lock:
        if not _num_blocks:
            _plain_init = nn.Module.__init__
            nn.Module.__init__ = _marking_init  # type: ignore[method-assign, assignment]
        _num_blocks += change
        if not _num_blocks:
            nn.Module.__init__ = _plain_init  # type: ignore[method-assign]


def _marking_init(module: nn.Module, *args: Any, **options: Any) -> None:
    _plain_init(module, *args, **options)
    choices = _choices.get()
    if choices:
        module.__dict__[_MARK] = choices[-1]
