# SPDX-License-Identifier: Apache-2.0
"""Needs of a training: batch, precision, and options that the user has fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.quantities import MOST_BYTES, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of each parameter element in memory and in messages.

    Attributes:
        name: Name of the dtype of computation.
        weight: Bytes of a weight that is whole on each replica.
        gradient: Bytes of its gradient, in memory and in all-reduces.
        optimizer: Bytes of its optimizer state, with master weight.
        shard: Bytes of a sharded element: weight and optimizer state.
        gathered: Bytes of a weight gathered from its shards.
        sum: Bytes of a gradient that is reduced to shards, and in its messages.
    """

    name: str
    weight: float
    gradient: float
    optimizer: float
    shard: float
    gathered: float
    sum: float


# Adam. In float32, all state takes 16 bytes. In 16 bits without shards, the runtime keeps a float32
# master weight, two moments, and a float32 copy of the gradient while it updates. With shards, the
# shards are float32 and are the master weights; FSDP2 gathers 16 bits and sums in float32.
PRECISIONS: Final = {
    "float32": Precision(
        name="float32", weight=4, gradient=4, optimizer=8, shard=12, gathered=4, sum=4
    ),
    "bfloat16": Precision(
        name="bfloat16", weight=2, gradient=2, optimizer=16, shard=12, gathered=2, sum=4
    ),
    "float16": Precision(
        name="float16", weight=2, gradient=2, optimizer=16, shard=12, gathered=2, sum=4
    ),
}
REDUCTIONS: Final = ("step", "microbatch", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingNeeds:
    """Batch and numbers of a training, and the options that the user has fixed.

    Exactly one of `global_batch` and `batch_per_replica` is given. Options that are None are
    searched.

    Attributes:
        global_batch: Samples of one step over all replicas.
        batch_per_replica: Samples of one replica in one step, whatever the number of replicas.
        precision: Bytes of each parameter element: "float32", "bfloat16" or "float16" of
            `PRECISIONS`, or one of your own.
        memory_bytes: Bytes that a rank may use; None for the memory of the cluster's device.
        memory_margin: Fraction that the allocator's rounding and fragments add to activations and
            temporary memory. Default 0.08, an assumption.
        reduction: When sharded gradients are reduced: "step", after the last microbatch, as this
            runtime does by default; "microbatch", in each backward pass, so that no whole
            gradient is kept; or "auto", to search both.
        most_microbatch: Largest number of samples in a microbatch; None for no limit.
        least_microbatch: Smallest number of samples in a microbatch.
        pipeline, tensor, shard_degree, num_microbatches, virtual_stages: Fixed degrees and numbers.
        sharding, checkpointing, schedule, offload: Fixed options.
        only_shards: True to leave out layouts whose replicas keep whole state. Models of one
            replica are then shards over one rank.

    Raises:
        OptionError: A value is wrong; all faults are reported.
    """

    global_batch: int | None = None
    batch_per_replica: int | None = None
    precision: Precision = PRECISIONS["bfloat16"]
    memory_bytes: int | None = None
    memory_margin: float = 0.08
    reduction: str = "step"
    most_microbatch: int | None = None
    least_microbatch: int = 1
    pipeline: int | None = None
    tensor: int | None = None
    shard_degree: int | None = None
    num_microbatches: int | None = None
    virtual_stages: int | None = None
    sharding: str | None = None
    checkpointing: str | None = None
    schedule: str | None = None
    offload: bool | None = None
    only_shards: bool = False

    def __post_init__(self) -> None:
        raise_all(_faults(self))

    def batch_of(self, data: int) -> int | None:
        """Return the samples of one replica in a step, or None if `data` replicas cannot share it.

        Args:
            data: Number of replicas.
        """
        if self.batch_per_replica is not None:
            return self.batch_per_replica
        assert self.global_batch is not None
        return None if self.global_batch % data else self.global_batch // data


_COUNTS: Final = (
    "global_batch",
    "batch_per_replica",
    "memory_bytes",
    "most_microbatch",
    "least_microbatch",
    "pipeline",
    "tensor",
    "shard_degree",
    "num_microbatches",
    "virtual_stages",
)


def _faults(needs: TrainingNeeds) -> Iterator[OptionError]:
    for name in _COUNTS:
        value = getattr(needs, name)
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_count and 1 <= value <= MOST_BYTES):
            what, why = f"{name} is {shown(value)}", "it is a number of at least 1"
            hint = f"Pass an integer from 1 to {MOST_BYTES:,}"
            yield OptionError(what, why, hint, about=name)
    if (needs.global_batch is None) == (needs.batch_per_replica is None):
        given = "both" if needs.global_batch is not None else "neither"
        yield OptionError(
            f"{given} of global_batch and batch_per_replica are given",
            "the work of a step is the samples of all replicas, or those of one",
            "Pass one of the two",
            about="global_batch",
            kind="missing" if given == "neither" else "conflict",
        )
    margin = needs.memory_margin
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin <= 1:
        what, why = f"memory_margin is {shown(margin)}", "it is a fraction of the activations"
        yield OptionError(what, why, "Pass a number from 0 to 1", about="memory_margin")
    for name, choices in _CHOICES.items():
        value = getattr(needs, name)
        if value is not None and value not in choices:
            what, why = f"{name} is {shown(value)}", f"no such {name} exists"
            hint = closest(str(value), choices)
            yield OptionError(what, why, hint, about=name, kind="unknown")


SHARDINGS: Final = ("none", "optimizer", "full")
CHECKPOINTINGS: Final = ("none", "every_8th", "selective", "full")
SCHEDULES_TRIED: Final = ("1f1b", "interleaved_1f1b", "zero_bubble", "zero_bubble_v")
_CHOICES: Final = {
    "reduction": REDUCTIONS,
    "sharding": SHARDINGS,
    "checkpointing": CHECKPOINTINGS,
    "schedule": SCHEDULES_TRIED,
}
