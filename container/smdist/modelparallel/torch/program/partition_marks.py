# SPDX-License-Identifier: Apache-2.0
"""Marks that place modules on stages by hand: `smp.partition` and `smp.set_partition`.

A mark is a plain attribute of the module, so copies and pickles keep it; the state dict and the
class do not change. While a `with` block runs, `nn.Module.__init__` marks new modules, only in the
block's own thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from torch import nn

from sagemaker_dist.errors import require

_MARK = "_smp_partition"
_stages: ContextVar[tuple[int, ...]] = ContextVar("stages", default=())
_lock = Lock()
_plain_init = nn.Module.__init__
_num_blocks = 0


@contextmanager
def partition(stage: int) -> Iterator[None]:
    """Mark every module that is created in the block; among nested blocks the innermost counts.

    Raises:
        OptionError: `stage` is not an integer of 0 or more.
    """
    _require_stage(stage)
    token = _stages.set((*_stages.get(), stage))
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)
        _stages.reset(token)


def set_partition(module: nn.Module, stage: int) -> None:
    """Mark an existing module, and with it all modules inside that have no mark of their own.

    Raises:
        OptionError: `module` is not a module, or `stage` is not an integer of 0 or more.
    """
    require(
        isinstance(module, nn.Module),
        what=f"set_partition got {type(module).__name__}",
        why="marks are on modules",
        hint="Pass a torch.nn.Module",
    )
    _require_stage(stage)
    module.__dict__[_MARK] = stage


def marks_of(model: nn.Module) -> dict[str, int]:
    """Return marks by module name ("" is the model), unless a module around has the same."""
    marks: dict[str, int] = {}
    around: dict[str, int | None] = {}
    for name, module in model.named_modules():
        outer = around.get(name.rpartition(".")[0]) if name else None
        mark = module.__dict__.get(_MARK)
        around[name] = outer if mark is None else mark
        if mark is not None and mark != outer:
            marks[name] = mark
    return marks


def around_marks(marks: Mapping[str, int]) -> frozenset[str]:
    """Return the names of the modules around marked ones; none of them may be a unit."""
    parts = [name.split(".") for name in marks]
    return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each)))


def _require_stage(stage: object) -> None:
    require(
        isinstance(stage, int) and not isinstance(stage, bool) and stage >= 0,
        what=f"the stage is {stage!r}",
        why="stages are numbered from 0",
        hint="Pass an integer of 0 or more",
    )


def _count_blocks(change: int) -> None:
    """Patch `nn.Module.__init__` while any thread is in a block; restore it after the last."""
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
    stages = _stages.get()
    if stages:
        module.__dict__[_MARK] = stages[-1]
