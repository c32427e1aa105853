# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of `ModelParallel` on the ranks of a job: numbers of replicas and batch sizes.

Example: a job has 8 ranks, and each replica of the model is split over 4 ranks. This makes 2
replicas. With a global batch of 64 samples, each replica trains 32 samples in a step. With 4
microbatches, each microbatch has 8 samples. Options that are "auto" are not checked here, because
the planner chooses their values later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sagemaker_dist.contract.smp.rank_layout import Ranks, division_fault
from sagemaker_dist.errors import OptionError

_DEGREE = "pipeline_parallel_degree"
_TENSOR = "tensor_parallel_degree"


class Degrees(Protocol):
    """Protocol for the options of `ModelParallel` that concern numbers of ranks and batch sizes."""

    @property
    def pipeline_parallel_degree(self) -> int | str:
        """Return the number of ranks over which a model is split; "auto" if the planner chooses."""

    @property
    def tensor_parallel_degree(self) -> int:
        """Return the number of ranks over which each layer is split."""

    @property
    def microbatches(self) -> int | str:
        """Return the number of microbatches in a replica's batch; "auto" if the planner chooses."""

    @property
    def shard_degree(self) -> int | None:
        """Return the number of replicas that shard one copy of the state; None for all replicas.

        The state is the optimizer's state and, depending on the sharding, weights and gradients.
        """

    @property
    def global_batch_size(self) -> int | None:
        """Return the number of samples of one step over all replicas, or None if unknown."""


def replicas_of(options: Degrees, world_size: int) -> int | None:
    """Return the number of replicas on `world_size` ranks, rounded down.

    Returns None if `pipeline_parallel_degree` is "auto" and layers are whole.
    """
    degree = _stages(options)
    return world_size // _product(options, degree) if isinstance(degree, int) else None


def _stages(options: Degrees) -> int | str:
    """Return the number of ranks of a pipeline, or "auto"; with split layers, "auto" is 1."""
    degree = options.pipeline_parallel_degree
    return degree if isinstance(degree, int) or options.tensor_parallel_degree == 1 else 1


def _product(options: Degrees, degree: int) -> int:
    """Return the number of ranks that hold a whole model.

    Args:
        options: Options of the job.
        degree: Number of ranks of a pipeline.
    """
    return degree * options.tensor_parallel_degree


def split_faults(
    options: Degrees, *, world_size: int, num_hosts: int | None = None
) -> Iterator[OptionError]:
    """Yield a fault for each number that is not divisible as the options require.

    The number of ranks must be divisible by `pipeline_parallel_degree` times
    `tensor_parallel_degree`, the number of replicas by `shard_degree`, the global batch by the
    number of replicas, and a replica's batch by `microbatches`.

    Args:
        options: Options of the job.
        world_size: Ranks of the job.
        num_hosts: Hosts of the job, for the messages; None if unknown.
    """
    ranks = Ranks(size=world_size, num_hosts=num_hosts)
    degree, shards = _stages(options), options.shard_degree or 1
    if not isinstance(degree, int):
        yield from _open_faults(options, ranks)
        return
    degrees = {_DEGREE: degree, _TENSOR: options.tensor_parallel_degree}
    given = {name: number for name, number in degrees.items() if number > 1} or {_DEGREE: degree}
    if world_size % _product(options, degree):
        yield division_fault(ranks, given, "hold a whole model")
        return
    replicas = world_size // _product(options, degree)
    if replicas % shards:
        degrees = {**given, "shard_degree": shards}
        yield division_fault(ranks, degrees, "hold all shards of a model")
    yield from _batch_faults(options, replicas)


def _open_faults(options: Degrees, ranks: Ranks) -> Iterator[OptionError]:
    """Yield the faults that remain whichever `pipeline_parallel_degree` the planner chooses.

    There are two such faults: the number of ranks is not a multiple of `shard_degree`, or
    `global_batch_size` is not a multiple of `microbatches`.
    """
    shards = options.shard_degree or 1
    if ranks.size % shards:
        yield division_fault(ranks, {"shard_degree": shards}, "hold all shards of a model")
    if isinstance(options.microbatches, int) and options.global_batch_size is not None:
        yield from _batch_faults(options, 1)


def _batch_faults(options: Degrees, replicas: int) -> Iterator[OptionError]:
    batch, microbatches = options.global_batch_size, options.microbatches
    if batch is None:
        return
    if batch % replicas:
        yield OptionError(
            f"global_batch_size is {batch} and there are {replicas} replicas",
            f"all replicas have batches of equal size, and {batch} is not a multiple of {replicas}",
            f"Pass global_batch_size={_nearest(batch, replicas)}",
            about="global_batch_size",
            kind="indivisible",
        )
    elif isinstance(microbatches, int) and batch // replicas % microbatches:
        each = batch // replicas
        yield OptionError(
            f"microbatches is {microbatches} and the batch of a replica is {each}"
            f" ({batch} / {replicas})",
            f"microbatches have equal sizes, and {each} is not a multiple of {microbatches}",
            f"Pass microbatches={_divisors(each, microbatches)},"
            f" or global_batch_size={_nearest(batch, replicas * microbatches)}",
            about="microbatches",
            kind="indivisible",
        )


def _nearest(number: int, step: int) -> str:
    below = number // step * step
    return f"{below} or {below + step}" if below else f"{step}"


def _divisors(number: int, near: int) -> str:
    """Return text with the divisors of `number` just below and just above `near`, such as "4 or 8".

    If one of the two does not exist, the text has only the other.
    """
    valid = [each for each in range(1, number + 1) if number % each == 0]
    nearest = [each for each in valid if each < near][-1:]
    nearest += [each for each in valid if each > near][:1]
    return " or ".join(map(str, nearest))
