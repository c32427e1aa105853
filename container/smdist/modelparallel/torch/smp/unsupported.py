# SPDX-License-Identifier: Apache-2.0
"""Names of SMP v1 for features that are not supported: each use raises an error with a hint."""

from __future__ import annotations

from typing import NoReturn

from sagemaker_dist.errors import OptionError


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
