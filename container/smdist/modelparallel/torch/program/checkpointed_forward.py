# SPDX-License-Identifier: Apache-2.0
"""Forward function of a module that is replaced by one with activation checkpointing.

The module then saves only its inputs for the backward pass, which computes the other activations
again.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

from torch import nn
from torch.utils.checkpoint import checkpoint

SETTINGS: Final = "_smp_checkpoint"
_PLAIN: Final = "_smp_plain_forward"


def checkpoint_forward(module: nn.Module, *, preserves_rng_state: bool = True) -> None:
    """Checkpoint the activations of a module in all later calls; a second call changes nothing.

    Args:
        module: Module to change.
        preserves_rng_state: True if the recomputation in the backward pass draws the same random
            numbers as the forward pass.
    """
    own = module.__dict__
    if SETTINGS not in own and "forward" in own:
        own[_PLAIN] = own["forward"]
    own[SETTINGS] = (preserves_rng_state,)
    own["forward"] = MethodType(_checkpointed, module)


def is_checkpointed(module: nn.Module) -> bool:
    """Return True if the activations of a module are checkpointed by `checkpoint_forward`."""
    return SETTINGS in module.__dict__


def plain_forward(module: nn.Module) -> None:
    """Undo `checkpoint_forward`: later calls of the module save all activations."""
    own = module.__dict__
    own.pop("forward")
    own.pop(SETTINGS)
    if _PLAIN in own:
        own["forward"] = own.pop(_PLAIN)


def _checkpointed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the original forward function of the module `self` with activation checkpointing.

    This function replaces `self.forward`. Like a method, it gets the module as an argument, so it
    also works in a copy of the module.
    """
    return checkpoint(
        self.__dict__.get(_PLAIN) or MethodType(type(self).forward, self),
        *args,
        use_reentrant=False,
        preserve_rng_state=self.__dict__[SETTINGS][0],
        **kwargs,
    )
