# SPDX-License-Identifier: Apache-2.0
"""Names of SMP v1 for features that are not supported: each raises and names an alternative."""

from __future__ import annotations

from typing import Any, NoReturn

from sagemaker_dist.errors import OptionError

_WHY = "tensors are not split over ranks in this release, modules are"
_HINT = "Leave it out, and use a larger pipeline_parallel_degree or sharding='full'"


def tensor_parallelism(enabled: bool = True, **_: Any) -> NoReturn:
    """Refuse tensor parallelism; the error names an alternative."""
    raise OptionError(f"smp.tensor_parallelism(enabled={enabled!r})", _WHY, _HINT)


def set_tensor_parallelism(*_: Any, **__: Any) -> NoReturn:
    """Refuse tensor parallelism; the error names an alternative."""
    raise OptionError("smp.set_tensor_parallelism", _WHY, _HINT)


def tp_register(*_: Any, **__: Any) -> NoReturn:
    """Refuse tensor parallelism; the error names an alternative."""
    raise OptionError("smp.tp_register", _WHY, _HINT)


def tp_register_with_module(*_: Any, **__: Any) -> NoReturn:
    """Refuse tensor parallelism; the error names an alternative."""
    raise OptionError("smp.tp_register_with_module", _WHY, _HINT)


class UnsupportedModule:
    """Module of SMP v1 that is not supported; every access to an attribute raises.

    Args:
        name: Name as scripts write it.
        why: Reason why the module is not supported.
        hint: Alternative to use instead.
    """

    def __init__(self, name: str, why: str, hint: str) -> None:
        self._said = name, why, hint

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        own, why, hint = self._said
        raise OptionError(f"{own}.{name}", why, hint)


nn = UnsupportedModule("smp.nn", _WHY, "Use the layers of torch.nn; they are cut as they are")
optimizers = UnsupportedModule(
    "smp.optimizers",
    "fused optimizers are PyTorch's own",
    "Use torch.optim, such as AdamW(..., fused=True), and wrap it",
)
