# SPDX-License-Identifier: Apache-2.0
"""Names of SMP v1 for features that are not supported: each use raises an error with a hint."""

from __future__ import annotations

from typing import Any, NoReturn

from sagemaker_dist.errors import OptionError

_WHY = "layers of a model are split over ranks as they are, without layers of SMP's own"
_HINT = "Leave it out: tensor_parallel_degree splits the model's own layers"


def _unsupported(name: str, arguments: str = "") -> OptionError:
    """Return the error for a function that registers layers of SMP.

    Args:
        name: Name of the function in scripts.
        arguments: Arguments of the call in brackets, for the error's text.
    """
    about = tuple(name.split("."))
    return OptionError(f"{name}{arguments}", _WHY, _HINT, about=about, kind="unsupported")


def tp_register(*_: Any, **__: Any) -> NoReturn:
    """Raise OptionError, since SMP's own layers are not supported."""
    raise _unsupported("smp.tp_register")


def tp_register_with_module(*_: Any, **__: Any) -> NoReturn:
    """Raise OptionError, since SMP's own layers are not supported."""
    raise _unsupported("smp.tp_register_with_module")


class UnsupportedModule:
    """Module of SMP v1 that is not supported; every access to an attribute raises OptionError.

    Args:
        name: Name of the module in scripts, such as "smp.optimizers".
        why: Reason why the module is not supported.
        hint: Alternative to use instead.
    """

    def __init__(self, name: str, why: str, hint: str) -> None:
        self._error_parts = name, why, hint

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        own, why, hint = self._error_parts
        about = (*own.split("."), name)
        raise OptionError(f"{own}.{name}", why, hint, about=about, kind="unsupported")


optimizers = UnsupportedModule(
    "smp.optimizers",
    "SMP's fused optimizers are not supported, since PyTorch has its own",
    "Use torch.optim, such as AdamW(..., fused=True), inside smp.DistributedOptimizer",
)
