# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing with SMP's functions: a module saves only its inputs for backward.

The backward pass computes the other activations again. The checkpoint wraps the module's own
forward function, so it takes effect on the rank that has the module. If the module is split over
several ranks, each part is checkpointed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, Final

from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.torch.program.checkpointed_forward import SETTINGS, checkpoint_forward
from smdist.modelparallel.torch.session.current_model import current_model

_STRATEGIES: Final = ("each", "contiguous", "group_2")


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """Checkpoint the activations of a module in all later steps, as in SMP v1.

    Call this function before the first step, which splits the model. Unlike in SMP, the module may
    be split over several ranks: each part of the module then saves its own inputs.

    Args:
        module: Module of the model; an `nn.Sequential` is checkpointed in groups of its modules.
        preserve_rng_state: True if the recomputation in the backward pass draws the same random
            numbers as the forward pass.
        pack_args_as_tuple: For an `nn.Sequential`: True passes a tuple from one module to the next
            as one argument, as the Sequential itself does; False unpacks it.
        strategy: Groups of an `nn.Sequential`: "each" is every module by itself, "contiguous" is
            all modules together, "group_2" (or another number) is groups of 2 modules. If the
            Sequential is split, or the planner may split it, every module is a group.

    Raises:
        OptionError: The strategy is unknown, an argument for an `nn.Sequential` is given for
            another module, or the model is split already.
    """
    is_sequence = isinstance(module, nn.Sequential)
    raise_all(_faults(module, is_sequence, pack_args_as_tuple, strategy))
    checkpoint_forward(module, preserves_rng_state=preserve_rng_state)
    if isinstance(module, nn.Sequential):
        size = _group_size(strategy, len(module))
        module.__dict__[SETTINGS] = (preserve_rng_state, size, pack_args_as_tuple)
        module.__dict__["forward"] = MethodType(_in_groups, module)


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True) -> Any:
    """Call a module with activation checkpointing, as SMP v1's `patches.checkpoint.checkpoint`.

    Args:
        module: Module to call.
        args: Positional arguments of the module.
        preserve_rng_state: True if the recomputation in the backward pass draws the same random
            numbers as the forward pass.

    Returns:
        The result of the module.
    """
    return torch_checkpoint(
        module, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
    )


def checkpoint_sequential(
    sequential: nn.Sequential,
    input: Any,  # noqa: A002  SMP's name
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Call an `nn.Sequential` with activation checkpointing in groups of its modules.

    Args:
        sequential: Sequential to call.
        input: Input of its first module.
        strategy: Groups: "each" is every module by itself, "contiguous" is all modules together,
            "group_2" (or another number) is groups of 2 modules.
        preserve_rng_state: True if the recomputation in the backward pass draws the same random
            numbers as the forward pass.
        pack_args_as_tuple: True passes a tuple from one module to the next as one argument; False
            unpacks it.

    Returns:
        The result of the last module.

    Raises:
        OptionError: The strategy is unknown, or `sequential` is no `nn.Sequential`.
    """
    is_sequence = isinstance(sequential, nn.Sequential)
    raise_all(_faults(sequential, is_sequence, pack_args_as_tuple, strategy, needs_one=True))
    size = _group_size(strategy, len(sequential))
    return _run_groups(list(sequential), input, (preserve_rng_state, size, pack_args_as_tuple))


def _in_groups(self: nn.Sequential, input: Any) -> Any:  # noqa: A002  as Sequential names it
    return _run_groups(list(self), input, self.__dict__[SETTINGS])


def _run_groups(modules: Sequence[nn.Module], value: Any, settings: tuple[bool, int, bool]) -> Any:
    preserves, size, packs = settings
    for start in range(0, len(modules), size):
        run = partial(_run, modules[start : start + size], packs)
        value = torch_checkpoint(run, value, use_reentrant=False, preserve_rng_state=preserves)
    return value


def _run(modules: Sequence[nn.Module], packs: bool, value: Any) -> Any:
    for module in modules:
        value = module(*value) if isinstance(value, tuple) and not packs else module(value)
    return value


def _group_size(strategy: str, length: int) -> int:
    if strategy == "each":
        return 1
    return max(length, 1) if strategy == "contiguous" else int(strategy.partition("_")[2])


def _faults(
    module: nn.Module, is_sequence: bool, packs: bool, strategy: str, *, needs_one: bool = False
) -> Iterator[OptionError]:
    number = strategy.partition("_")[2] if strategy.startswith("group_") else "1"
    is_known = strategy in _STRATEGIES or strategy.startswith("group_")
    if not is_known or not number.isdecimal() or int(number) < 1:
        why = 'it has to be "each", "contiguous" or "group_" with a number of modules, "group_2"'
        yield OptionError(
            f"strategy is {strategy!r}", why, closest(strategy, _STRATEGIES), about="strategy"
        )
    if not is_sequence and (packs or strategy != "each" or needs_one):
        why = "pack_args_as_tuple and strategy apply to an nn.Sequential only"
        what = f"the module is a {type(module).__name__}"
        hint = "Leave both arguments out, or pass the nn.Sequential inside the module"
        yield OptionError(what, why, hint, about="module")
    model = current_model()
    if model is not None and model.is_cut and any(m is module for m in model.module.modules()):
        yield OptionError(
            f"the {type(module).__name__} is in a model that is split into stages already",
            "the calls of each stage are fixed when the model is split",
            "Call smp.set_activation_checkpointing before the first step",
            kind="too_late",
        )
