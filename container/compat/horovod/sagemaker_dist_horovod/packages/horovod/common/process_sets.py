# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.common.process_sets`: names of the framework whose module was imported before."""

import sys
from importlib import import_module
from typing import Any, Final

_MODULES: Final = {
    "horovod.torch": "smdist.dataparallel.torch.horovod",
    "horovod.tensorflow": "smdist.dataparallel.tensorflow",
}

_NAMES: Final = ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set")
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for theirs, ours in _MODULES.items():
        if theirs in sys.modules:
            return getattr(import_module(ours), name)
    raise ImportError(
        f"horovod.common.process_sets.{name} is not available yet: each framework has process sets"
        " of its own. Import horovod.torch or horovod.tensorflow before it."
    )
