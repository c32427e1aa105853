# SPDX-License-Identifier: Apache-2.0
"""Function DistributedOptimizer(): optimizers that reduce gradients before they apply them.

It clones an optimizer of Keras 3: it makes a subclass of the optimizer's class and returns an
object of the subclass with the same configuration. The clone reduces gradients before it clips
them and before a LossScaleOptimizer checks that they are finite, so that all ranks act alike. If
gradients are accumulated over several passes, the clone reduces the accumulated sums once, before
the update.

Keras saves the clone under the name of the given class, so a saved model can be loaded without
smdist. For optimizers of tf.compat.v1.train see graph_optimizer.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import keras

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow.call_forms import (
    check_devices,
    names_of_arguments,
    refuse_unknown,
)
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.fusion_options import checked_fusion_bytes
from smdist.dataparallel.tensorflow.keras import jit_compile
from smdist.dataparallel.tensorflow.keras.class_alias import named_as
from smdist.dataparallel.tensorflow.keras.clone_optimizer import (
    INNER,
    STEPS,
    clone_configuration,
    copy_state,
    innermost,
)
from smdist.dataparallel.tensorflow.keras.graph_optimizer import is_graph_optimizer, reducing_clone
from smdist.dataparallel.tensorflow.keras.reducing_mixins import (
    OptimizerReduction,
    Reduced,
    ReducedOnUpdate,
    ReducedScale,
    is_distributed,
)
from smdist.dataparallel.tensorflow.set_members import ProcessSet
from smdist.dataparallel.tensorflow.tape import check_groups, reduction_of

_ANY: Final = object()
# argument of SMDDP or Horovod -> (accepted value, reason why others are refused)
_OTHER_ARGUMENTS: Final[dict[str, tuple[Any, str]]] = {
    "bucket_cap_mb": (_ANY, ""),
    "groups": (_ANY, ""),
    "num_groups": (_ANY, ""),
    "scale_local_gradients": (True, "all gradients are reduced, so there are no local ones"),
    "use_locking": (False, "optimizers of Keras 3 have no locks, and others have an own argument"),
}


def DistributedOptimizer(  # noqa: N802  Horovod's and SMDDP's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    *,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    fusion_bytes: int | None = None,
    process_set: ProcessSet | None = None,
    **other_arguments: Any,
) -> Any:
    """Return a clone of the optimizer that reduces gradients over all ranks.

    It works with model.fit and with apply_gradients() in a loop.

    Args:
        optimizer: A Keras 3 optimizer, whose state is copied; with loss scaling, the
            LossScaleOptimizer. Or an optimizer of tf.compat.v1.train, whose variables are shared:
            then compute_gradients() reduces, and with it minimize().
        name: Name of the clone; by default that of the optimizer.
        device_dense: Horovod's argument; must be empty.
        device_sparse: Horovod's argument; must be empty.
        compression: Compression.none, .fp16 or .bf16.
        sparse_as_dense: True to convert IndexedSlices to dense tensors; by default their rows
            are gathered from all ranks.
        gradient_predivide_factor: Divide gradients by this before the sum over ranks, and the
            sum by the number of ranks / this factor.
        op: AVERAGE, the default, SUM or ADASUM.
        backward_passes_per_step: Number of backward passes whose gradients are added on each
            rank before they are reduced and applied; 1 for optimizers of tf.compat.v1.train.
        average_aggregated_gradients: True to divide the sum by the number of passes, as Keras's
            own gradient_accumulation_steps does.
        fusion_bytes: Bytes per bucket; by default the job's value, which is 25 MiB if not set.
        process_set: Ranks over which gradients are reduced; by default all.
        other_arguments: SMDDP's bucket_cap_mb, which is fusion_bytes in MiB, and other arguments
            of Horovod, which must have their default values.

    Raises:
        OptionError: A value is out of range or not supported, or the optimizer cannot be cloned.
    """
    is_of_graph = is_graph_optimizer(optimizer)
    if not is_of_graph:
        _check_optimizer(optimizer)
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    fusion = _fusion_bytes(fusion_bytes, other_arguments)
    reduction = reduction_of(op, compression, gradient_predivide_factor, fusion, process_set)
    if is_of_graph:
        plain = OptimizerReduction(reduction=reduction, sparse_as_dense=sparse_as_dense)
        return reducing_clone(optimizer, plain, backward_passes_per_step, name)
    passes = _passes(optimizer, backward_passes_per_step)
    is_sum = backward_passes_per_step > 1 and not average_aggregated_gradients
    factor = float(passes) if is_sum else 1.0
    options = OptimizerReduction(
        reduction=reduction, sparse_as_dense=sparse_as_dense, factor=factor
    )
    jit_compile.disable_xla_for_auto()
    return _distributed(optimizer, options, passes, name)


def _distributed(optimizer: Any, options: OptimizerReduction, passes: int, name: str | None) -> Any:
    """Return the optimizer's distributed clone, with its state.

    Args:
        optimizer: The optimizer to clone.
        options: Options with which the clone reduces gradients.
        passes: Number of backward passes before an update.
        name: Name of the clone; None for that of the optimizer.
    """
    made = _clone(optimizer, passes, {"name": name or optimizer.name})
    for each in (made, innermost(made)):
        if hasattr(each, "smdist_reduction"):
            each.smdist_reduction = options
    copy_state(optimizer, made)
    return made


def _clone(optimizer: Any, passes: int, changes: dict[str, Any]) -> Any:
    """Return the optimizer's distributed clone, without state.

    If a LossScaleOptimizer accumulates several passes, its inner optimizer reduces the gradients.

    Args:
        optimizer: The optimizer to clone.
        passes: Number of backward passes before an update.
        changes: Values that replace those of the optimizer's configuration, by name.
    """
    base: Any = type(optimizer)
    inner = innermost(optimizer)
    if inner is optimizer:
        kind = Reduced if passes == 1 else ReducedOnUpdate
        steps = {} if passes == 1 else {STEPS: passes}
        return clone_configuration(optimizer, _class(kind, base), {**changes, **steps})
    if passes == 1:
        within = clone_configuration(inner, type(inner), {})
        return clone_configuration(optimizer, _class(Reduced, base), {**changes, INNER: within})
    within = clone_configuration(inner, _class(ReducedOnUpdate, inner.__class__), {STEPS: passes})
    return clone_configuration(optimizer, _class(ReducedScale, base), {**changes, INNER: within})


@cache
def _class(kind: Any, base: Any) -> Any:
    return named_as(base, type(base.__name__, (kind, base), {}))


def _check_optimizer(optimizer: Any) -> None:
    require(
        isinstance(optimizer, keras.optimizers.Optimizer),
        what=f"the optimizer is {optimizer!r}",
        why="DistributedOptimizer supports optimizers of Keras 3 and of tf.compat.v1.train",
        hint="Pass an optimizer such as keras.optimizers.SGD(0.01)",
        about="optimizer",
    )
    require(
        not is_distributed(optimizer) and not is_distributed(innermost(optimizer)),
        what="the optimizer is a DistributedOptimizer already",
        why="gradients would be reduced twice, or ranks would scale their losses differently",
        hint="Call DistributedOptimizer() once, on the outermost optimizer:"
        " DistributedOptimizer(LossScaleOptimizer(optimizer))",
        about="optimizer",
        kind="wrapped",
    )
    require(
        keras.backend.backend() == "tensorflow",
        what=f"the backend of Keras is {keras.backend.backend()}",
        why="this DistributedOptimizer works only with the backend tensorflow",
        hint="Set the environment variable KERAS_BACKEND to tensorflow",
        about="KERAS_BACKEND",
    )


def _fusion_bytes(fusion_bytes: int | None, other_arguments: dict[str, Any]) -> int | None:
    own = names_of_arguments(DistributedOptimizer)
    refuse_unknown("DistributedOptimizer", other_arguments, own, _OTHER_ARGUMENTS)
    for name, value in other_arguments.items():
        accepted, why = _OTHER_ARGUMENTS[name]
        require(
            accepted is _ANY or value is None or value == accepted,
            what=f"{name} is {value!r}",
            why=why,
            hint=f"Leave {name} out",
            about=name,
        )
    check_groups(other_arguments.get("num_groups"), other_arguments.get("groups"))
    bucket_cap_mb = other_arguments.get("bucket_cap_mb")
    require(
        fusion_bytes is None or bucket_cap_mb is None,
        what=f"both fusion_bytes={fusion_bytes!r} and bucket_cap_mb={bucket_cap_mb!r} were passed",
        why="both set the size of the same buckets",
        hint="Pass only fusion_bytes",
        about="fusion_bytes",
        kind="conflict",
    )
    chosen = fusion_bytes if bucket_cap_mb is None else bucket_cap_mb * 1024 * 1024
    return None if chosen is None else checked_fusion_bytes(chosen)


def _passes(optimizer: Any, backward_passes_per_step: Any) -> int:
    require(
        isinstance(backward_passes_per_step, int) and backward_passes_per_step >= 1,
        what=f"backward_passes_per_step is {backward_passes_per_step!r}",
        why="it must be the number of backward passes before an update",
        hint="Pass a positive integer",
        about="backward_passes_per_step",
    )
    own = getattr(innermost(optimizer), STEPS, None)
    if own and backward_passes_per_step > 1:
        raise OptionError(
            f"backward_passes_per_step is {backward_passes_per_step}, and the optimizer has"
            f" {STEPS}={own}",
            "both accumulate gradients over several passes",
            f"Keep {STEPS}, and leave backward_passes_per_step out",
            about="backward_passes_per_step",
            kind="conflict",
        )
    return int(own or backward_passes_per_step)
