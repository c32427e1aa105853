# SPDX-License-Identifier: Apache-2.0
"""Creation of models without values, so that a rank never has values of other stages in memory.

    with smp.model_creation(dtype=torch.bfloat16):
        model = GPT(config)

A parameter without values is on the meta device and takes no memory. Parameters are moved there one
by one, when a module registers them. Buffers, such as the tables of rotary embeddings, keep their
values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from torch import nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.materialization.skeleton import hollow
from smdist.modelparallel.torch.program.split_marks import SPLIT_MARK, option_faults

_is_delayed: ContextVar[bool] = ContextVar("is_delayed", default=False)
_lock = Lock()
_EMPTY = "_smp_without_values"
_plain_register = nn.Module.register_parameter
_num_blocks = 0


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Create parameters without values, on the meta device, inside a `with` block.

    When the model is split, each rank initialises the parameters of its own stages. The modules'
    own initialisation draws the values, seeded by the names of parameters. So the values do not
    depend on how the model is split. If blocks are nested, `enabled` of the innermost one is used.

    Args:
        enabled: False creates parameters with values as usual.
    """
    token = _is_delayed.set(enabled)
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)
        _is_delayed.reset(token)


@contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tp_config: Any
) -> Iterator[None]:
    """Create a model inside a `with` block: its parameters have no values, and a given dtype.

    The parameters are on the meta device. When the model is split, each rank initialises the
    parameters of its own stages.

    Args:
        tensor_parallelism: True to choose the modules that are created in the block to be split
            over ranks, as a block of `smp.tensor_parallelism` does. False makes no choice.
        dtype: Type of new floating-point parameters; None is torch's default dtype.
        tp_config: Options of SMP's own layers, which may be False and are refused otherwise:
            modules are split as they are.

    Raises:
        OptionError: Arguments are wrong or not supported; all faults are reported at once.
    """
    raise_all(_refused(tensor_parallelism, dtype, tp_config))
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    is_marked = SPLIT_MARK.on_new_modules(True) if tensor_parallelism else nullcontext()
    try:
        with is_marked, delay_param_initialization():
            yield
    finally:
        torch.set_default_dtype(before)


def _refused(
    tensor_parallelism: object, dtype: object, tp_config: dict[str, Any]
) -> Iterator[OptionError]:
    if not isinstance(tensor_parallelism, bool):
        yield OptionError(
            f"tensor_parallelism is {tensor_parallelism!r}",
            "it has to be a bool",
            "Pass True or False",
            about="tensor_parallelism",
        )
    yield from option_faults("smp.model_creation", tp_config)
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_float:
        yield OptionError(
            f"dtype is {dtype!r}",
            "it has to be a floating-point torch.dtype, the type of parameters",
            "Pass a torch.dtype such as torch.bfloat16",
            about="dtype",
        )


def _count_blocks(change: int) -> None:
    """Count blocks that delay initialisation; patch `nn.Module` while there is at least one.

    Args:
        change: 1 at the start of a block, -1 at its end.
    """
    global _num_blocks, _plain_register
    with _lock:
        if not _num_blocks:
            _plain_register = nn.Module.register_parameter
            nn.Module.register_parameter = _register  # type: ignore[method-assign, assignment]
        _num_blocks += change
        if not _num_blocks:
            nn.Module.register_parameter = _plain_register  # type: ignore[method-assign]


def _register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
    if _is_delayed.get() and param is not None and _has_values(param):
        if _EMPTY not in vars(param):  # modules that share it get one tensor
            setattr(param, _EMPTY, hollow(param))
        param = getattr(param, _EMPTY)
    _plain_register(module, name, param)


def _has_values(param: nn.Parameter) -> bool:
    return not param.is_meta and not isinstance(param, nn.UninitializedParameter)
