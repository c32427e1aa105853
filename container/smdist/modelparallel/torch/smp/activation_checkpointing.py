# SPDX-License-Identifier: Apache-2.0
"""Activation checkpoints: a module keeps only its inputs, and computes the rest again in backward.

A checkpoint is put into the module's own forward function, so it moves with the module: into a
unit, or around each of the units that the module is opened into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, Final

from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.torch.session.current_model import current_model

_PLAIN: Final = "_smp_plain_forward"
_SETTINGS: Final = "_smp_checkpoint"
_STRATEGIES: Final = ("each", "contiguous", "group_2")


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """Checkpoint the activations of a module, before the model is cut.

    The arguments are SMP v1's. A module that is cut is checkpointed in parts: every unit of it
    keeps its own inputs. SMP excepts modules that are cut; here they need no special case.

    Args:
        module: Module of the model; an `nn.Sequential` is checkpointed by its modules.
        preserve_rng_state: True if the second computation draws the same random numbers.
        pack_args_as_tuple: For an `nn.Sequential`: True passes a tuple from one module to the next
            as one argument, as the Sequential itself does; False unpacks it.
        strategy: For an `nn.Sequential`: "each" checkpoints each module by itself, "group_2" (or
            another number) groups of modules, "contiguous" all as one. If stages are cut between
            its modules, or the planner may do so, groups are single modules.

    Raises:
        OptionError: The strategy is unknown, the arguments are for an `nn.Sequential`, or the
            model has been cut.
    """
    is_sequence = isinstance(module, nn.Sequential)
    raise_all(_faults(module, is_sequence, pack_args_as_tuple, strategy))
    _wrap(module, preserve_rng_state)
    if isinstance(module, nn.Sequential):
        size = _group_size(strategy, len(module))
        module.__dict__[_SETTINGS] = (preserve_rng_state, size, pack_args_as_tuple)
        module.__dict__["forward"] = MethodType(_in_groups, module)


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True) -> Any:
    """Run a module now, checkpointed: SMP v1's `patches.checkpoint.checkpoint`."""
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
    """Run a sequence of modules now, checkpointed as by `set_activation_checkpointing`.

    Raises:
        OptionError: The strategy is unknown, or `sequential` is no `nn.Sequential`.
    """
    is_sequence = isinstance(sequential, nn.Sequential)
    raise_all(_faults(sequential, is_sequence, pack_args_as_tuple, strategy, needs_one=True))
    size = _group_size(strategy, len(sequential))
    return _run_groups(list(sequential), input, (preserve_rng_state, size, pack_args_as_tuple))


def _wrap(module: nn.Module, preserves: bool) -> None:
    own = module.__dict__
    if _SETTINGS not in own and "forward" in own:
        own[_PLAIN] = own["forward"]
    own[_SETTINGS] = (preserves,)
    own["forward"] = MethodType(_checkpointed, module)


def _checkpointed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace a module's forward; a plain function, so that copies of the module have it too."""
    return torch_checkpoint(
        self.__dict__.get(_PLAIN) or MethodType(type(self).forward, self),
        *args,
        use_reentrant=False,
        preserve_rng_state=self.__dict__[_SETTINGS][0],
        **kwargs,
    )


def _in_groups(self: nn.Sequential, input: Any) -> Any:  # noqa: A002  as Sequential names it
    return _run_groups(list(self), input, self.__dict__[_SETTINGS])


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
        why = 'it is "each", "contiguous", or "group_" and how many modules are one'
        yield OptionError(
            f"strategy is {strategy!r}", why, closest(strategy, _STRATEGIES), about="strategy"
        )
    if not is_sequence and (packs or strategy != "each" or needs_one):
        why = "pack_args_as_tuple and strategies are for the modules of an nn.Sequential"
        what = f"the module is a {type(module).__name__}"
        yield OptionError(what, why, "Leave them out, or pass the nn.Sequential in it")
    model = current_model()
    if model is not None and model.is_cut and any(m is module for m in model.module.modules()):
        yield OptionError(
            f"the {type(module).__name__} is in a model that has been cut",
            "what a stage runs is written down by then",
            "Call smp.set_activation_checkpointing before the first step",
        )
