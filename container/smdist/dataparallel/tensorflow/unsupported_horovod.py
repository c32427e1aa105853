# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod that smdist does not have, with the reason and a replacement for each."""

from __future__ import annotations

import sys
from difflib import get_close_matches

# pairs (why, hint)
_SETS = ("every collective is over all ranks", "Leave process sets out")
_PARTIAL = (
    "smdist reduces all gradients of an optimizer or tape",
    "For variables that are not shared, call gradient() on a tf.GradientTape",
)
_OPS = ("the number of ranks does not change in a job", "Use rank(), size(), local_rank()")
_CROSS = (
    "smdist does not number hosts",
    "Use {} // local_size(), if all hosts have the same number of ranks",
)
_BUILT = (
    "smdist has only one engine, which uses TCP and shared memory",
    "Remove this check from the script",
)

_TRACES = "smdist writes no traces; TensorFlow's profiler does"

_INSTEAD = {
    "Adasum": ("it is not implemented", "Use op=Average"),
    "PartialDistributedGradientTape": _PARTIAL,
    "PartialDistributedOptimizer": _PARTIAL,
    "ProcessSet": _SETS,
    "SyncBatchNormalization": (
        "smdist does not share the statistics of batches between ranks",
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
        "Save checkpoints, and resume from them when the job is started again",
    ),
    "global_process_set": _SETS,
    "gloo_built": _BUILT,
    "gloo_enabled": _BUILT,
    "join": (
        "all ranks must call every collective, and so need the same number of batches",
        "Give all ranks the same number of batches, with steps_per_epoch or dataset.take()",
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
    "start_timeline": (_TRACES, "Use tf.profiler.experimental.start()"),
    "stop_timeline": (_TRACES, "Use tf.profiler.experimental.stop()"),
}


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that the module does not have.

    For an unsupported name of Horovod, the error contains the reason and a replacement. For any
    other name, the error contains the most similar name of the module, if there is one.
    """
    what = f"module {module!r} has no attribute {name!r}"
    if name in _INSTEAD:
        why, hint = _INSTEAD[name]
        return AttributeError(f"{what}: {why}. {hint}.")
    near = get_close_matches(name, getattr(sys.modules.get(module), "__all__", ()), n=1)
    return AttributeError(f"{what}. Did you mean {near[0]!r}?" if near else what)
