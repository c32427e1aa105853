# SPDX-License-Identifier: Apache-2.0
"""Splitting a model over ranks, as an option that checks itself.

Its arithmetic is in `splitting`; SMP's parameters, which it can be read from, in `smp.ours`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sagemaker_dist.contract.named import Named
from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.contract.pipelines import AUTO
from sagemaker_dist.contract.smp.ours import as_options, smp_warnings
from sagemaker_dist.contract.splitting import replicas_of, split_faults
from sagemaker_dist.contract.staging import option_faults
from sagemaker_dist.errors import OptionError, closest, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParallel(Named):
    """Cut the model into stages on several ranks, and train replicas of it beside each other.

    Attributes:
        pipeline_parallel_degree: Ranks that hold one model, at least 1; it divides the ranks of
            the job. Default "auto": what the planner finds the fastest.
        microbatches: Parts that a replica's batch is cut into, at least 1; it divides that batch.
            Default "auto": the planner's.
        pipeline: The order of work: "simple", "interleaved", "1f1b", "interleaved_1f1b",
            "looped_bfs", "zero_bubble", "zero_bubble_v" or "dualpipe_v". Default "auto": the
            planner's.
        active_microbatches: For the pipeline "interleaved": microbatches that a rank may hold
            between forward and backward, at least 1. Default None: ranks + 2, as SMP v1 has it.
        virtual_stages: Stages on each rank, for pipelines that take several. Default None: the
            planner's.
        placement_strategy: "cluster" (neighbours hold one model), "spread" (as far apart as
            possible), or an order of D, P and T (replicas, stages, tensors), whose last letter
            is that of neighbours. Default "cluster", which is "DPT"; "spread" is "TPD", as in
            SMP v1.
        optimize: "speed" or "memory": what stages are balanced by. Default None: time.
        memory_weight: The same as a number from 0 (time) to 1 (memory); name one of the two.
        auto_partition: The planner places layers; else `smp.partition` in the script does.
            Default True.
        default_partition: With auto_partition=False: the stage of what the script places
            nowhere, from 0. Default None: an error where there is such a thing.
        plan: The path of a plan that was saved, relative to the directory of the script; it
            decides what stages hold, and in which order they work. Default None.
        device_memory: What a rank may use, as bytes or text such as "16GiB". Default None: what
            its device has.
        sharding: "none" (each replica holds its weights), "optimizer" (replicas share out the
            optimizer's state) or "full" (gradients and weights, too). Default "none".
        shard_degree: Replicas that share, at least 1; it divides their number. Default None:
            all.
        gradient_clipping: The L2 norm that all gradients together are clipped to before each
            step of the optimizer. Default None: not clipped.
        bf16: With sharding: weights are computed with in bfloat16, and kept in float32.
            Default False.
        global_batch_size: Samples of one step over all replicas, at least 1, to be checked
            before the job starts. Default None: the script's alone.
        seed: What dropout and other random numbers start from, 0 to 2**63 - 1. Default 0.
        engine: What `DataParallel` says of ranks, connections and timeouts; a dict of its
            options is taken, too. `fusion_bytes` is that of gradients summed over replicas.

    Raises:
        OptionError: A value is wrong, or options exclude each other; all faults are reported.
    """

    pipeline_parallel_degree: int | str = AUTO
    microbatches: int | str = AUTO
    pipeline: str = AUTO
    active_microbatches: int | None = None
    virtual_stages: int | None = None
    placement_strategy: str = "cluster"
    optimize: str | None = None
    memory_weight: float | None = None
    auto_partition: bool = True
    default_partition: int | None = None
    plan: str | None = None
    device_memory: int | str | None = None
    sharding: str = "none"
    shard_degree: int | None = None
    gradient_clipping: float | None = None
    bf16: bool = False
    global_batch_size: int | None = None
    seed: int = 0
    engine: DataParallel = field(default_factory=DataParallel)

    def __post_init__(self) -> None:
        faults: list[OptionError] = []
        passed: Any = (self.plan, self.engine)
        if isinstance(passed[0], os.PathLike):
            object.__setattr__(self, "plan", os.fspath(passed[0]))
        if isinstance(passed[1], Mapping):  # as JSON has it
            engine, faults = _engine(passed[1])
            object.__setattr__(self, "engine", engine)
        raise_all([*option_faults(self), *faults])

    def distribution(self) -> dict[str, Any]:
        """The same as the dict that `distribution=` takes."""
        return {"smdist": {"modelparallel": asdict(self)}}

    @classmethod
    def from_smp(
        cls, parameters: Mapping[str, Any], *, engine: DataParallel | None = None
    ) -> ModelParallel:
        """Read the `parameters` of AWS's model parallel library v1, with its defaults.

        What they cannot mean here is warned of, as far as the training is the same.

        Raises:
            OptionError: A key is unknown or not supported, or a value is wrong; all faults,
                each with what to use instead.
        """
        options = cls(**as_options(parameters), engine=engine or DataParallel())
        for warning in smp_warnings(parameters):
            warnings.warn(warning, stacklevel=2)
        return options

    def replicas(self, world_size: int) -> int | None:
        """How many models so many ranks hold: 2 of 4 stages on 8 ranks; None while "auto".

        Raises:
            OptionError: The degrees or the batch do not fit so many ranks; all faults.
        """
        raise_all(split_faults(self, world_size=world_size))
        return replicas_of(self, world_size)

    def batch_per_replica(self, world_size: int) -> int | None:
        """Samples of one replica's step: 32 of 64 for 2 replicas; None while that is open.

        Raises:
            OptionError: The degrees or the batch do not fit so many ranks; all faults.
        """
        replicas = self.replicas(world_size)
        if self.global_batch_size is None or replicas is None:
            return None
        return self.global_batch_size // replicas

    def iterations(self, records: int) -> int | None:
        """Steps that an epoch of so many samples takes; None without `global_batch_size`.

        The last one may be smaller.
        """
        size = self.global_batch_size
        return None if size is None else -(-records // size)


def _engine(section: Mapping[str, Any]) -> tuple[DataParallel, list[OptionError]]:
    """The options of a dict, or the default ones and what is wrong with it."""
    names = [option.name for option in fields(DataParallel)]
    faults = [
        OptionError(f"engine has the key {name!r}", "no such key exists", closest(str(name), names))
        for name in section
        if name not in names
    ]
    try:
        engine = DataParallel(**{name: section[name] for name in names if name in section})
    except OptionError as error:
        return DataParallel(), [*faults, error]
    return engine, faults
