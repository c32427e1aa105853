# SPDX-License-Identifier: Apache-2.0
"""Runtime inside a training image: the launcher and the all-reduce engine.

smdist.launch               `train`: one host's part of a job
smdist.dataparallel.torch   registers the torch.distributed backend "smdist"
"""

from typing import Any

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # imported late: slower than the launcher's other imports
    from importlib.metadata import version

    return version("sagemaker-dist-runtime")
