# SPDX-License-Identifier: Apache-2.0
"""Agreement of all ranks on a flag, by the framework that the script uses.

No framework is imported here: a script that trains with one has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

from sagemaker_dist.errors import require
from smdist.config import read_rank_config


def any_rank(flag: bool) -> bool:
    """Return True if `flag` is True on any rank; all ranks have to call it.

    Raises:
        OptionError: The job has several ranks, and this one is not connected to them yet.
    """
    torch, tensorflow = sys.modules.get("torch"), _tensorflow()
    if torch is not None and _is_torch_connected(torch):
        return _any_by_torch(torch, flag)
    if tensorflow is not None:
        return _any_by_tensorflow(flag)
    size = read_rank_config().size or 1
    require(
        size == 1,
        what=f"this process is one of {size} ranks and is not connected to the others",
        why="the ranks must agree on the step at which they stop",
        hint="Call init_process_group() of torch.distributed, or init() of"
        " smdist.dataparallel.tensorflow, before the first step",
        about="size",
        kind="not_connected",
    )
    return flag


def _is_torch_connected(torch: Any) -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _any_by_torch(torch: Any, flag: bool) -> bool:
    distributed = torch.distributed
    if distributed.get_world_size() == 1:
        return flag
    flags = torch.tensor(int(flag), dtype=torch.int32, device=_device(distributed))
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)
    return bool(flags.item())


def _device(distributed: Any) -> str:
    """Return the type of a device whose tensors the default process group takes; CPU if it can."""
    types = [device.type for device in distributed.group.WORLD._device_types]
    return "cpu" if "cpu" in types or not types else types[0]


def _tensorflow() -> Any:
    """Return the module with `is_initialized` if the script's TensorFlow ranks are connected."""
    basics = sys.modules.get("smdist.dataparallel.tensorflow.basics")
    return basics if basics is not None and basics.is_initialized() else None


def _any_by_tensorflow(flag: bool) -> bool:
    import tensorflow as tf

    from smdist.dataparallel.tensorflow.collectives import allreduce
    from smdist.dataparallel.tensorflow.reduce_op import ReduceOp

    return bool(allreduce(tf.constant(int(flag), tf.int32), op=ReduceOp.MAX))
