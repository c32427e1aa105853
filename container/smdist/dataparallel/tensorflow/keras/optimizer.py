# SPDX-License-Identifier: Apache-2.0
"""Keras 3 optimizer that applies gradients reduced over all ranks.

DistributedOptimizer() makes a subclass of the given optimizer's class, with its configuration.
The subclass reduces gradients before every other use: clipping, the update after
accumulation, and the finite check of a LossScaleOptimizer. So every rank takes the same
decision. It is saved as the plain optimizer, so a saved model loads without smdist.
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
from smdist.dataparallel.tensorflow.fusion_options import checked
from smdist.dataparallel.tensorflow.keras import jit_compile
from smdist.dataparallel.tensorflow.keras.class_alias import named_as
from smdist.dataparallel.tensorflow.keras.clone_optimizer import (
    INNER,
    STEPS,
    innermost,
    rebuilt,
    take_state,
)
from smdist.dataparallel.tensorflow.keras.reducing_mixins import (
    OptimizerReduction,
    Reduced,
    ReducedOnUpdate,
    ReducedScale,
    is_distributed,
)
from smdist.dataparallel.tensorflow.tape import reduction_of, refuse_groups

_ANY: Final = object()
# arguments of SMDDP and Horovod: accepted value, reason
_OF_OTHERS: Final[dict[str, tuple[Any, str]]] = {
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
        optimizer: A Keras 3 optimizer, whose state is kept; for loss scaling, the
            LossScaleOptimizer.
        op: AVERAGE, the default, or SUM.
        sparse_as_dense: Whether to make IndexedSlices dense; by default their rows are gathered.
        backward_passes_per_step: Number of passes whose gradients are added up on this rank
            before they are reduced.
        average_aggregated_gradients: Whether to divide by the number of passes, as Keras's own
            gradient_accumulation_steps does.
        fusion_bytes: Bytes per buffer; default the job's value, which is 25 MiB if not set.
        of_others: SMDDP's bucket_cap_mb, which is fusion_bytes in MiB, and other arguments of
            Horovod, which must have their default values.

    Raises:
        OptionError: A value has no meaning here, or the optimizer cannot be cloned.
    """
    _check_optimizer(optimizer)
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    fusion = _fusion_bytes(fusion_bytes, of_others)
    reduction = reduction_of(op, compression, gradient_predivide_factor, fusion)
    passes = _passes(optimizer, backward_passes_per_step)
    is_sum = backward_passes_per_step > 1 and not average_aggregated_gradients
    factor = float(passes) if is_sum else 1.0
    course = OptimizerReduction(reduction=reduction, sparse_as_dense=sparse_as_dense, factor=factor)
    jit_compile.let_auto_mean_no_xla()
    return _distributed(optimizer, course, passes, name)


def _distributed(optimizer: Any, course: OptimizerReduction, passes: int, name: str | None) -> Any:
    """Return the optimizer's distributed clone, with its state."""
    made = _twin(optimizer, passes, {"name": name or optimizer.name})
    for each in (made, innermost(made)):
        if hasattr(each, "smdist_course"):
            each.smdist_course = course
    take_state(optimizer, made)
    return made


def _twin(optimizer: Any, passes: int, changes: dict[str, Any]) -> Any:
    """Return the distributed clone without state.

    In a LossScaleOptimizer that accumulates, the inner optimizer reduces.
    """
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
        hint="Pass one of keras.optimizers, such as keras.optimizers.SGD(0.01)",
    )
    require(
        not is_distributed(optimizer) and not is_distributed(innermost(optimizer)),
        what="the optimizer is a DistributedOptimizer already",
        why="gradients would be reduced twice, or loss scaling would not agree between ranks",
        hint="Wrap once, the outermost: DistributedOptimizer(LossScaleOptimizer(optimizer))",
    )
    require(
        keras.backend.backend() == "tensorflow",
        what=f"Keras computes with {keras.backend.backend()}",
        why="these collectives are TensorFlow's",
        hint="Set KERAS_BACKEND=tensorflow",
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
            hint=f"Leave {name} out",
        )
    refuse_groups(of_others.get("num_groups"), of_others.get("groups"))
    bucket_cap_mb = of_others.get("bucket_cap_mb")
    require(
        fusion_bytes is None or bucket_cap_mb is None,
        what=f"fusion_bytes is {fusion_bytes!r} beside bucket_cap_mb {bucket_cap_mb!r}",
        why="both set the size of the same buffer",
        hint="Keep fusion_bytes",
    )
    asked = fusion_bytes if bucket_cap_mb is None else bucket_cap_mb * 1024 * 1024
    return None if asked is None else checked(asked)


def _passes(optimizer: Any, backward_passes_per_step: Any) -> int:
    require(
        isinstance(backward_passes_per_step, int) and backward_passes_per_step >= 1,
        what=f"backward_passes_per_step is {backward_passes_per_step!r}",
        why="it is the number of passes before an update",
        hint="Pass a positive integer",
    )
    own = getattr(innermost(optimizer), STEPS, None)
    if own and backward_passes_per_step > 1:
        raise OptionError(
            f"backward_passes_per_step is {backward_passes_per_step} beside {STEPS} {own}",
            "both accumulate gradients",
            f"Keep {STEPS}",
            about="backward_passes_per_step",
        )
    return int(own or backward_passes_per_step)
