# SPDX-License-Identifier: Apache-2.0
"""Package `horovod` on the engine of sagemaker-dist, with the names of Horovod 0.28.1."""

from __future__ import annotations

from typing import Any

__version__ = "0.28.1"


def __getattr__(name: str) -> Any:
    if name == "run":
        raise AttributeError(
            "horovod.run() is not available: sagemaker-dist starts ranks of a script, not of a"
            " function. Start the script with horovodrun -np N python train.py"
        )
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
