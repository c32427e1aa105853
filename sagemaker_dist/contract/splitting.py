# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of `ModelParallel` on the ranks of a job: pure, and the same before and in it.

8 ranks of 4 stages are 2 replicas; a global batch of 64 is 32 for each; 4 microbatches of that are
of 8. What the planner decides later is not checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sagemaker_dist.contract.smp.worlds import Ranks, misfit
from sagemaker_dist.errors import OptionError

if TYPE_CHECKING:
    from sagemaker_dist.contract.model_parallel import ModelParallel

_DEGREE = "pipeline_parallel_degree"


def replicas_of(options: ModelParallel, world_size: int) -> int | None:
    """Models that so many ranks hold; None where the degree is the planner's."""
    degree = options.pipeline_parallel_degree
    return world_size // degree if isinstance(degree, int) else None


def split_faults(
    options: ModelParallel, *, world_size: int, num_hosts: int | None = None
) -> Iterator[OptionError]:
    """What does not divide: ranks by stages, replicas by shards, the batch by both of its cuts."""
    ranks = Ranks(size=world_size, num_hosts=num_hosts)
    degree, shards = options.pipeline_parallel_degree, options.shard_degree or 1
    if not isinstance(degree, int):
        yield from _open_faults(options, ranks)
        return
    if world_size % degree:
        yield misfit(ranks, {_DEGREE: degree}, "hold a whole model")
        return
    replicas = world_size // degree
    if replicas % shards:
        degrees = {_DEGREE: degree, "shard_degree": shards}
        yield misfit(ranks, degrees, "hold all shards of a model")
    yield from _batch_faults(options, replicas)


def _open_faults(options: ModelParallel, ranks: Ranks) -> Iterator[OptionError]:
    """Whatever degree the planner finds: replicas are a divisor of the ranks."""
    shards = options.shard_degree or 1
    if ranks.size % shards:
        yield misfit(ranks, {"shard_degree": shards}, "hold all shards of a model")
    if isinstance(options.microbatches, int) and options.global_batch_size is not None:
        yield from _batch_faults(options, 1)


def _batch_faults(options: ModelParallel, replicas: int) -> Iterator[OptionError]:
    batch, microbatches = options.global_batch_size, options.microbatches
    if batch is None:
        return
    if batch % replicas:
        yield OptionError(
            f"global_batch_size is {batch} and there are {replicas} replicas",
            f"each trains on as many samples, and {batch} is no multiple of {replicas}",
            f"Pass global_batch_size={_nearest(batch, replicas)}",
        )
    elif isinstance(microbatches, int) and batch // replicas % microbatches:
        each = batch // replicas
        yield OptionError(
            f"microbatches is {microbatches} and the batch of a replica is {each}"
            f" ({batch} / {replicas})",
            f"microbatches are of one size, and {each} is no multiple of {microbatches}",
            f"Pass microbatches={_divisors(each, microbatches)},"
            f" or global_batch_size={_nearest(batch, replicas * microbatches)}",
        )


def _nearest(number: int, step: int) -> str:
    below = number // step * step
    return f"{below} or {below + step}" if below else f"{step}"


def _divisors(number: int, near: int) -> str:
    """The divisors of a number below and above another."""
    valid = [each for each in range(1, number + 1) if number % each == 0]
    nearest = [each for each in valid if each < near][-1:]
    nearest += [each for each in valid if each > near][:1]
    return " or ".join(map(str, nearest))
