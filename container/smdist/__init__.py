# SPDX-License-Identifier: Apache-2.0
"""Runtime inside a training image: the launcher and the all-reduce engine.

smdist.launch                    the command `train`: starts and watches one host's ranks
smdist.dataparallel.torch        registers the torch.distributed backend "smdist"
smdist.dataparallel.tensorflow   collectives and optimizers for TensorFlow, named as in Horovod
smdist.modelparallel             splits a PyTorch model over ranks
"""

from typing import Any

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # imported here and not at the top: it takes longer than all other imports of the launcher
    from importlib.metadata import version

    return version("sagemaker-dist-runtime")
