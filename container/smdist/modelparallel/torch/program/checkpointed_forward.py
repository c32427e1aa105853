# SPDX-License-Identifier: Apache-2.0
"""Forward function of a module that is replaced by one with activation checkpointing.

The module then saves only its inputs for the backward pass, which computes the other activations
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, Final

from torch import nn
from torch.utils.checkpoint import checkpoint

from sagemaker_dist.errors import closest, require

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


def checkpoint_modules(model: nn.Module, names: Sequence[str]) -> None:
    """Checkpoint the activations of the modules that a plan names.

    Args:
        model: Model that has the modules.
        names: Names of the modules in the model.

    Raises:
        OptionError: The model has no such modules; then none is changed.
    """
    known = dict(model.named_modules())
    unknown = [name for name in names if name not in known]
    require(
        not unknown,
        what=f"the plan checkpoints the modules {', '.join(map(repr, unknown))}",
        why=f"{type(model).__name__} has no modules of these names",
        hint=closest(unknown[0], known) if unknown else "",
        about="checkpointed",
        kind="unknown",
    )
    for name in names:
        checkpoint_forward(known[name])


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
