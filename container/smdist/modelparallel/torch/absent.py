# SPDX-License-Identifier: Apache-2.0
"""Names of SMP v1 that stand for what is not here: each says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from sagemaker_dist.errors import OptionError

_WHY = "tensors are not split over ranks in this release, modules are"
_MEND = "Leave it out, and use a larger pipeline_parallel_degree or sharding='full'"


def tensor_parallelism(enabled: bool = True, **_: Any) -> NoReturn:
    """Not here: raises what to use instead."""
    raise OptionError(f"smp.tensor_parallelism(enabled={enabled!r})", _WHY, _MEND)


def set_tensor_parallelism(*_: Any, **__: Any) -> NoReturn:
    """Not here: raises what to use instead."""
    raise OptionError("smp.set_tensor_parallelism", _WHY, _MEND)


def tp_register(*_: Any, **__: Any) -> NoReturn:
    """Not here: raises what to use instead."""
    raise OptionError("smp.tp_register", _WHY, _MEND)


def tp_register_with_module(*_: Any, **__: Any) -> NoReturn:
    """Not here: raises what to use instead."""
    raise OptionError("smp.tp_register_with_module", _WHY, _MEND)


class Absent:
    """A module of SMP v1 that is not here: whatever is asked of it raises.

    Args:
        name: As scripts write it.
        why: Why it is not here.
        mend: What to use instead.
    """

    def __init__(self, name: str, why: str, mend: str) -> None:
        self._said = name, why, mend

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        own, why, mend = self._said
        raise OptionError(f"{own}.{name}", why, mend)


nn = Absent("smp.nn", _WHY, "Use the layers of torch.nn; they are cut as they are")
optimizers = Absent(
    "smp.optimizers",
    "fused optimizers are PyTorch's own",
    "Use torch.optim, such as AdamW(..., fused=True), and wrap it",
)
