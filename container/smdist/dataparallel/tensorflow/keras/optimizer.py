# SPDX-License-Identifier: Apache-2.0
"""A Keras 3 optimizer that applies gradients of all ranks.

It is a subclass of the given optimizer's own class, made from its configuration, that
reduces gradients before anything else sees them: clipping, accumulation's update and the
finite check of a LossScaleOptimizer, so that every rank takes the same decision. It is
saved as the plain optimizer: a model loads where there is no smdist.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import keras

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.forms import check_devices, names_of_arguments, refuse_unknown
from smdist.dataparallel.tensorflow.keras import compiling
from smdist.dataparallel.tensorflow.keras.classes import named_as
from smdist.dataparallel.tensorflow.keras.reduced import (
    Course,
    Reduced,
    ReducedOnUpdate,
    ReducedScale,
)
from smdist.dataparallel.tensorflow.keras.twin import (
    INNER,
    STEPS,
    innermost,
    rebuilt,
    take_state,
)
from smdist.dataparallel.tensorflow.options import checked
from smdist.dataparallel.tensorflow.tape import reduction_of, refuse_groups

_ANY: Final = object()
_OF_OTHERS: Final[dict[str, tuple[Any, str]]] = {  # what SMDDP's and Horovod's take: value, why
    "bucket_cap_mb": (_ANY, ""),
    "groups": (_ANY, ""),
    "num_groups": (_ANY, ""),
    "process_set": (None, "gradients are reduced over all ranks"),
    "scale_local_gradients": (True, "there are no local gradients: all are reduced"),
    "use_locking": (False, "optimizers of Keras 3 have no locks"),
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
    **of_others: Any,
) -> Any:
    """Wrap the outermost optimizer, for model.fit and for apply_gradients() in a loop.

    Args:
        optimizer: Of Keras 3, with its state; for loss scaling the LossScaleOptimizer.
        op: AVERAGE, the default, or SUM.
        sparse_as_dense: Make IndexedSlices dense; by default their rows are gathered.
        backward_passes_per_step: Passes that are added up here before they are reduced.
        average_aggregated_gradients: Divide by the number of passes, as Keras's own
            gradient_accumulation_steps does.
        fusion_bytes: Bytes per buffer; default what the job was given, 25 MiB.
        of_others: SMDDP's bucket_cap_mb: fusion_bytes in MiB; defaults of Horovod's others.

    Raises:
        OptionError: A value has no meaning here, or the optimizer cannot be built again.
    """
    _check_optimizer(optimizer)
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    fusion = _fusion_bytes(fusion_bytes, of_others)
    reduction = reduction_of(op, compression, gradient_predivide_factor, fusion)
    passes = _passes(optimizer, backward_passes_per_step)
    is_sum = backward_passes_per_step > 1 and not average_aggregated_gradients
    factor = float(passes) if is_sum else 1.0
    course = Course(reduction=reduction, sparse_as_dense=sparse_as_dense, factor=factor)
    compiling.let_auto_mean_no_xla()
    return _distributed(optimizer, course, passes, name)


def is_distributed(optimizer: Any) -> bool:
    """Whether DistributedOptimizer() made it."""
    return isinstance(optimizer, (Reduced, ReducedScale))


def _distributed(optimizer: Any, course: Course, passes: int, name: str | None) -> Any:
    """The optimizer's twin, with its state."""
    made = _twin(optimizer, passes, {"name": name or optimizer.name})
    for each in (made, innermost(made)):
        if hasattr(each, "smdist_course"):
            each.smdist_course = course
    take_state(optimizer, made)
    return made


def _twin(optimizer: Any, passes: int, changes: dict[str, Any]) -> Any:
    """In a LossScaleOptimizer that accumulates, the inner one reduces."""
    base: Any = type(optimizer)
    inner = innermost(optimizer)
    if inner is optimizer:
        kind = Reduced if passes == 1 else ReducedOnUpdate
        steps = {} if passes == 1 else {STEPS: passes}
        return rebuilt(optimizer, _class(kind, base), {**changes, **steps})
    if passes == 1:
        within = rebuilt(inner, type(inner), {})
        return rebuilt(optimizer, _class(Reduced, base), {**changes, INNER: within})
    within = rebuilt(inner, _class(ReducedOnUpdate, inner.__class__), {STEPS: passes})
    return rebuilt(optimizer, _class(ReducedScale, base), {**changes, INNER: within})


@cache
def _class(kind: Any, base: Any) -> Any:
    return named_as(base, type(base.__name__, (kind, base), {}))


def _check_optimizer(optimizer: Any) -> None:
    require(
        isinstance(optimizer, keras.optimizers.Optimizer),
        what=f"the optimizer is {optimizer!r}",
        why="DistributedOptimizer wraps optimizers of Keras 3",
        mend="Pass one of keras.optimizers, such as keras.optimizers.SGD(0.01)",
    )
    require(
        not is_distributed(optimizer) and not is_distributed(innermost(optimizer)),
        what="the optimizer is a DistributedOptimizer already",
        why="gradients would be reduced twice, or loss scaling would not agree between ranks",
        mend="Wrap once, the outermost: DistributedOptimizer(LossScaleOptimizer(optimizer))",
    )
    require(
        keras.backend.backend() == "tensorflow",
        what=f"Keras computes with {keras.backend.backend()}",
        why="these collectives are TensorFlow's",
        mend="Set KERAS_BACKEND=tensorflow",
    )


def _fusion_bytes(fusion_bytes: int | None, of_others: dict[str, Any]) -> int | None:
    own = names_of_arguments(DistributedOptimizer)
    refuse_unknown("DistributedOptimizer", of_others, own, _OF_OTHERS)
    for name, value in of_others.items():
        accepted, why = _OF_OTHERS[name]
        require(
            accepted is _ANY or value is None or value == accepted,
            what=f"{name} is {value!r}",
            why=why,
            mend=f"Leave {name} out",
        )
    refuse_groups(of_others.get("num_groups"), of_others.get("groups"))
    bucket_cap_mb = of_others.get("bucket_cap_mb")
    require(
        fusion_bytes is None or bucket_cap_mb is None,
        what=f"fusion_bytes is {fusion_bytes!r} beside bucket_cap_mb {bucket_cap_mb!r}",
        why="both set the size of the same buffer",
        mend="Keep fusion_bytes",
    )
    asked = fusion_bytes if bucket_cap_mb is None else bucket_cap_mb * 1024 * 1024
    return None if asked is None else checked(asked)


def _passes(optimizer: Any, backward_passes_per_step: Any) -> int:
    require(
        isinstance(backward_passes_per_step, int) and backward_passes_per_step >= 1,
        what=f"backward_passes_per_step is {backward_passes_per_step!r}",
        why="it is the number of passes before an update",
        mend="Pass a positive integer",
    )
    own = getattr(innermost(optimizer), STEPS, None)
    if own and backward_passes_per_step > 1:
        raise OptionError(
            f"backward_passes_per_step is {backward_passes_per_step} beside {STEPS} {own}",
            "both accumulate gradients",
            f"Keep {STEPS}",
        )
    return int(own or backward_passes_per_step)
