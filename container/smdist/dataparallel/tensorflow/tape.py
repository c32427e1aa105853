# SPDX-License-Identifier: Apache-2.0
"""tf.GradientTape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.compression import Compression, check_compression
from smdist.dataparallel.tensorflow.forms import Factors, check_devices, with_names_checked
from smdist.dataparallel.tensorflow.gradients import reduce_gradients
from smdist.dataparallel.tensorflow.library import as_written, tf
from smdist.dataparallel.tensorflow.options import checked
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, as_op
from smdist.dataparallel.tensorflow.reducing import Reduction
from smdist.dataparallel.tensorflow.world import size


class DistributedGradientTape:
    """Wrap a tf.GradientTape, before or after it has recorded; gradient() reduces over ranks.

    Everything else is the tape's own, also jacobian(), which stays this rank's.

    Args:
        op: AVERAGE, the default, or SUM.
        sparse_as_dense: Make IndexedSlices dense; by default their rows are gathered.
        gradient_predivide_factor: Divide an average before (by this) and after the sum.
        fusion_bytes: Bytes per buffer; default what the job was given, 25 MiB.

    Raises:
        OptionError: A value is out of range, or num_groups is given: fusion_bytes says how
            gradients are packed.
    """

    @with_names_checked
    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        *,
        op: Any = None,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        fusion_bytes: int | None = None,
    ) -> None:
        check_devices(device_dense=device_dense, device_sparse=device_sparse)
        refuse_groups(num_groups, groups)
        self._tape = gradtape
        self._sparse_as_dense = sparse_as_dense
        self._reduction = reduction_of(op, compression, gradient_predivide_factor, fusion_bytes)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._tape.__exit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The tape's gradient(), reduced over all ranks; same structure as `sources`."""
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(gradients)
        reduced = reduce_gradients(
            flat, tf.nest.flatten(sources), self._reduction, self._sparse_as_dense
        )
        return tf.nest.pack_sequence_as(gradients, reduced)


def reduction_of(
    op: Any, compression: Any, predivide_factor: float, fusion_bytes: int | None
) -> Reduction:
    """What DistributedGradientTape and DistributedOptimizer are asked to do.

    Raises:
        OptionError: A value is out of range.
    """
    chosen = as_op(op)
    require(
        chosen in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"op is {chosen.value!r} for gradients",
        why="those of a whole batch are the average or the sum of the ranks' gradients",
        mend="Pass op=ReduceOp.AVERAGE or op=ReduceOp.SUM",
    )
    factors = Factors()
    if predivide_factor != 1:
        require(
            chosen is ReduceOp.AVERAGE and predivide_factor > 0,
            what=f"gradient_predivide_factor is {predivide_factor!r} with op={chosen.value!r}",
            why="it moves a part of an average's division before the sum",
            mend="Pass a positive factor with op=ReduceOp.AVERAGE, or leave it out",
        )
        chosen = ReduceOp.SUM
        factors = Factors(before=1 / predivide_factor, after=predivide_factor / size())
    return Reduction(
        op=chosen,
        compression=check_compression(compression),
        factors=factors,
        fusion_bytes=None if fusion_bytes is None else checked(fusion_bytes),
    )


def refuse_groups(num_groups: Any, groups: Any) -> None:
    """Refuse Horovod's two ways to pack gradients.

    Raises:
        OptionError: One is used.
    """
    require(
        not num_groups and groups is None,
        what=f"num_groups is {num_groups!r} and groups is {groups!r}",
        why="fusion_bytes says how many bytes of gradients travel together",
        mend="Leave both out, and pass fusion_bytes if the default does not suit",
    )
