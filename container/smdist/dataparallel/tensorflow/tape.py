# SPDX-License-Identifier: Apache-2.0
"""Gradient tape whose gradient() reduces gradients over all ranks."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Final

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.call_forms import Factors, check_devices, suggest_argument_names
from smdist.dataparallel.tensorflow.compression import Compression, check_compression
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions
from smdist.dataparallel.tensorflow.fusion_options import checked_fusion_bytes
from smdist.dataparallel.tensorflow.gradients import reduce_gradients
from smdist.dataparallel.tensorflow.local_sources import LocalSources
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, as_op
from smdist.dataparallel.tensorflow.set_members import ProcessSet, members_of

_LOG: Final = logging.getLogger("smdist.dataparallel.tensorflow")


class DistributedGradientTape:
    """Wrapper of a tf.GradientTape whose gradient() reduces the gradients over all ranks.

    The tape may be wrapped before or after recording. All other methods are the tape's own; so
    jacobian() returns this rank's values.

    Args:
        gradtape: The tf.GradientTape to wrap.
        device_dense: Horovod's argument; must be empty.
        device_sparse: Horovod's argument; must be empty.
        compression: Compression.none, .fp16 or .bf16.
        sparse_as_dense: True to convert IndexedSlices to dense tensors; by default their rows
            are gathered from all ranks.
        op: AVERAGE, the default, SUM or ADASUM.
        gradient_predivide_factor: Divide gradients by this before the sum over ranks, and the
            sum by the number of ranks / this factor.
        num_groups: Horovod's argument; has no effect but a line in the log: see groups.
        groups: Horovod's argument; has no effect but a line in the log, because fusion_bytes
            determines which gradients travel together. Results are the same.
        process_set: Ranks over which gradients are reduced; by default all.
        fusion_bytes: Bytes per bucket; by default the job's value, which is 25 MiB if not set.
        scale_local_gradients: True to divide the gradients of local variables
            (`register_local_source`) by the number of ranks.

    Raises:
        OptionError: A value is out of range.
    """

    @suggest_argument_names
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
        scale_local_gradients: bool = True,
        process_set: ProcessSet | None = None,
    ) -> None:
        check_devices(device_dense=device_dense, device_sparse=device_sparse)
        check_groups(num_groups, groups)
        self._local = LocalSources(scale_local_gradients)
        self._tape = gradtape
        self._sparse_as_dense = sparse_as_dense
        self._reduction = reduction_of(
            op, compression, gradient_predivide_factor, fusion_bytes, process_set
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._tape.__exit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Declare a variable as local: its gradient is not reduced over ranks."""
        self._local.add(source)

    @without_autograph
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the tape's gradients, reduced over all ranks, in the structure of `sources`.

        The arguments are those of tf.GradientTape.gradient().
        """
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._local.reduce(
            tf.nest.flatten(gradients), tf.nest.flatten(sources), self._reduced
        )
        return tf.nest.pack_sequence_as(gradients, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return gradient() in two lists of (variable, gradient): of local variables, and others.

        The arguments are those of gradient(). Horovod 0.28.1 has this method, and the function's
        argument `use_generic_names`, which is not here: no name is made of a variable's.
        """
        gradients = self.gradient(target, sources, output_gradients)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
        local = [pair for pair in pairs if self._local.has(pair[0])]
        return local, [pair for pair in pairs if not self._local.has(pair[0])]

    def _reduced(self, gradients: list[Any], sources: list[Any]) -> list[Any]:
        return reduce_gradients(gradients, sources, self._reduction, self._sparse_as_dense)


def PartialDistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: Any, *, local_layers: Any = None, **options: Any
) -> DistributedGradientTape:
    """Return a DistributedGradientTape that leaves the gradients of some layers to each rank.

    Args:
        gradtape: The tf.GradientTape to wrap.
        local_layers: A Keras layer, or several, whose variables are local; None for none yet.
        options: Other arguments of DistributedGradientTape.

    Raises:
        OptionError: A value is out of range, or an argument is unknown.
    """
    tape = DistributedGradientTape(gradtape, **options)
    tape._local.add_layers(local_layers)
    return tape


def reduction_of(
    op: Any,
    compression: Any,
    predivide_factor: float,
    fusion_bytes: int | None,
    process_set: ProcessSet | None = None,
) -> ReduceOptions:
    """Return the reduce options of a DistributedGradientTape or DistributedOptimizer.

    Args:
        op: AVERAGE, SUM or ADASUM; None for AVERAGE.
        compression: Compression.none, .fp16 or .bf16.
        predivide_factor: The argument gradient_predivide_factor. Gradients are divided by this
            factor before the sum over ranks. The sum is multiplied by factor / number of ranks.
        fusion_bytes: Bytes per bucket; None for the job's value.
        process_set: Ranks over which gradients are reduced; None for all.

    Raises:
        OptionError: A value is out of range.
    """
    chosen = as_op(op)
    require(
        chosen in (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM),
        what=f"op is {chosen.value!r} for gradients",
        why="the gradient of the whole batch is the average or the sum of the ranks' gradients, and"
        " Adasum lies between them",
        hint="Pass op=ReduceOp.AVERAGE, ReduceOp.SUM or ReduceOp.ADASUM",
        about="op",
    )
    factors = Factors()
    members = None if process_set is None else members_of(process_set)
    if predivide_factor != 1:
        require(
            chosen is ReduceOp.AVERAGE and predivide_factor > 0,
            what=f"gradient_predivide_factor is {predivide_factor!r} with op={chosen.value!r}",
            why="the factor must be positive, and it can be used only with an average",
            hint="Pass a positive factor with op=ReduceOp.AVERAGE, or leave it out",
            about="gradient_predivide_factor",
        )
        chosen = ReduceOp.SUM
        factors = Factors(
            before=1 / predivide_factor, after=predivide_factor / (members or members_of(None)).size
        )
    return ReduceOptions(
        op=chosen,
        compression=check_compression(compression),
        factors=factors,
        members=members,
        fusion_bytes=None if fusion_bytes is None else checked_fusion_bytes(fusion_bytes),
    )


def check_groups(num_groups: Any, groups: Any) -> None:
    """Check Horovod's arguments num_groups and groups, and log once that they have no effect.

    They determine which gradients are sent together; in smdist `fusion_bytes` does.

    Raises:
        OptionError: A value is one that Horovod does not accept either.
    """
    for name, value in (("num_groups", num_groups), ("groups", groups)):
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        is_list = name == "groups" and isinstance(value, (list, tuple))
        require(
            value is None or is_count or is_list,
            what=f"{name} is {value!r}",
            why="it is a number of groups, or for groups a list of lists of variables",
            hint=f"Leave {name} out: fusion_bytes packs gradients",
            about=name,
        )
    if num_groups or groups:
        _log_groups()


@cache
def _log_groups() -> None:
    if basics.is_initialized() and basics.rank() == 0:
        _LOG.warning(
            "num_groups and groups have no effect, and results are the same without them: gradients"
            " travel in buckets of fusion_bytes bytes"
        )
