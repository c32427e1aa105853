# SPDX-License-Identifier: Apache-2.0
"""Gradient tape that reduces gradients over all ranks."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.basics import size
from smdist.dataparallel.tensorflow.call_forms import Factors, check_devices, with_names_checked
from smdist.dataparallel.tensorflow.compression import Compression, check_compression
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
from smdist.dataparallel.tensorflow.fusion_options import checked
from smdist.dataparallel.tensorflow.gradients import reduce_gradients
from smdist.dataparallel.tensorflow.op_library import as_written, tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, as_op


class DistributedGradientTape:
    """Wrap a tf.GradientTape, before or after recording; gradient() reduces over all ranks.

    Everything else is the tape's own, including jacobian(), which stays this rank's.

    Args:
        op: AVERAGE, the default, or SUM.
        sparse_as_dense: Whether to make IndexedSlices dense; by default their rows are gathered.
        gradient_predivide_factor: Part of an average's division that is made before the sum;
            the rest is made after it.
        fusion_bytes: Bytes per buffer; default the job's value, which is 25 MiB if not set.

    Raises:
        OptionError: A value is out of range, or num_groups is given: fusion_bytes decides how
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
        """Return the tape's gradient(), reduced over all ranks, in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(gradients)
        reduced = reduce_gradients(
            flat, tf.nest.flatten(sources), self._reduction, self._sparse_as_dense
        )
        return tf.nest.pack_sequence_as(gradients, reduced)


def reduction_of(
    op: Any, compression: Any, predivide_factor: float, fusion_bytes: int | None
) -> ReduceOptions:
    """Return the reduce options of a DistributedGradientTape or DistributedOptimizer.

    Raises:
        OptionError: A value is out of range.
    """
    chosen = as_op(op)
    require(
        chosen in (ReduceOp.SUM, ReduceOp.AVERAGE),
        what=f"op is {chosen.value!r} for gradients",
        why="those of a whole batch are the average or the sum of the ranks' gradients",
        hint="Pass op=ReduceOp.AVERAGE or op=ReduceOp.SUM",
    )
    factors = Factors()
    if predivide_factor != 1:
        require(
            chosen is ReduceOp.AVERAGE and predivide_factor > 0,
            what=f"gradient_predivide_factor is {predivide_factor!r} with op={chosen.value!r}",
            why="it moves a part of an average's division before the sum",
            hint="Pass a positive factor with op=ReduceOp.AVERAGE, or leave it out",
        )
        chosen = ReduceOp.SUM
        factors = Factors(before=1 / predivide_factor, after=predivide_factor / size())
    return ReduceOptions(
        op=chosen,
        compression=check_compression(compression),
        factors=factors,
        fusion_bytes=None if fusion_bytes is None else checked(fusion_bytes),
    )


def refuse_groups(num_groups: Any, groups: Any) -> None:
    """Refuse Horovod's two ways to pack gradients.

    Raises:
        OptionError: num_groups or groups is given.
    """
    require(
        not num_groups and groups is None,
        what=f"num_groups is {num_groups!r} and groups is {groups!r}",
        why="fusion_bytes says how many bytes of gradients travel together",
        hint="Leave both out, and pass fusion_bytes if the default does not suit",
    )
