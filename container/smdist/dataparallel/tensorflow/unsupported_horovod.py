# SPDX-License-Identifier: Apache-2.0
"""Horovod's names that smdist does not have, and their replacements."""

from __future__ import annotations

import sys
from difflib import get_close_matches

_SETS = ("every operation is one of all ranks", "Leave process sets out")
_PARTIAL = (
    "all gradients are reduced",
    "Call gradient() on a plain tape for variables that stay a rank's own",
)
_OPS = ("the number of ranks does not change in a job", "Use rank(), size(), local_rank()")
_CROSS = ("ranks are not counted by hosts", "Use {} // local_size() where hosts have as many ranks")
_BUILT = ("there is one engine, over TCP and shared memory", "Leave the question out")

_INSTEAD = {
    "Adasum": ("it is not implemented", "Use op=Average"),
    "PartialDistributedGradientTape": _PARTIAL,
    "PartialDistributedOptimizer": _PARTIAL,
    "ProcessSet": _SETS,
    "SyncBatchNormalization": (
        "each rank normalises its own batches",
        "Use keras.layers.BatchNormalization, or GroupNormalization for tiny batches",
    ),
    "add_process_set": _SETS,
    "broadcast_object_fn": ("it is for sessions", "Use broadcast_object()"),
    "ccl_built": _BUILT,
    "cross_rank": (_CROSS[0], _CROSS[1].format("rank()")),
    "cross_size": (_CROSS[0], _CROSS[1].format("size()")),
    "cuda_built": _BUILT,
    "ddl_built": _BUILT,
    "elastic": (
        "the number of ranks does not change in a job",
        "Save checkpoints; a job that starts again resumes from them",
    ),
    "global_process_set": _SETS,
    "gloo_built": _BUILT,
    "gloo_enabled": _BUILT,
    "join": (
        "ranks wait for each other in every operation",
        "Give every rank as many batches, by steps_per_epoch or dataset.take()",
    ),
    "local_rank_op": _OPS,
    "local_size_op": _OPS,
    "mpi_built": _BUILT,
    "mpi_enabled": _BUILT,
    "mpi_threads_supported": _BUILT,
    "nccl_built": _BUILT,
    "process_set_included_op": _SETS,
    "rank_op": _OPS,
    "remove_process_set": _SETS,
    "rocm_built": _BUILT,
    "size_op": _OPS,
    "start_timeline": ("traces are TensorFlow's", "Use tf.profiler.experimental.start()"),
    "stop_timeline": ("traces are TensorFlow's", "Use tf.profiler.experimental.stop()"),
}


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the error for a name that the module does not have, with a replacement if known."""
    said = f"module {module!r} has no attribute {name!r}"
    if name in _INSTEAD:
        why, hint = _INSTEAD[name]
        return AttributeError(f"{said}: {why}. {hint}.")
    near = get_close_matches(name, getattr(sys.modules.get(module), "__all__", ()), n=1)
    return AttributeError(f"{said}. Did you mean {near[0]!r}?" if near else said)
