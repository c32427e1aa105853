# SPDX-License-Identifier: Apache-2.0
"""`ModelParallel`, the options for splitting a model over ranks; they check themselves.

The arithmetic of ranks is in `model_parallel_ranks`; the conversion from SMP v1's parameters is in
`smp.to_model_parallel`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.model_parallel_checks import option_faults
from sagemaker_dist.contract.model_parallel_ranks import replicas_of, split_faults
from sagemaker_dist.contract.schedule_limits import AUTO
from sagemaker_dist.contract.smp.to_model_parallel import model_parallel_options, smp_warnings
from sagemaker_dist.contract.unknown_option import Named
from sagemaker_dist.errors import OptionError, closest, raise_all, within


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParallel(Named):
    """Split the model into stages on several ranks, and train replicas of it side by side.

    Attributes:
        pipeline_parallel_degree: Ranks that hold one model, at least 1; it divides the ranks of the
            job. Default "auto": the degree that the planner finds the fastest.
        microbatches: Microbatches of a replica's batch, at least 1; it divides that batch. Default
            "auto": the planner chooses.
        pipeline: Pipeline schedule: "simple", "interleaved", "1f1b", "interleaved_1f1b",
            "looped_bfs", "zero_bubble", "zero_bubble_v" or "dualpipe_v". Default "auto": the
            planner chooses.
        active_microbatches: For the pipeline "interleaved": most microbatches that a rank holds
            between forward and backward, at least 1. Default None: ranks + 2, as in SMP v1.
        virtual_stages: Stages on each rank, for schedules that allow several. Default None: the
            planner chooses.
        placement_strategy: "cluster" (neighbouring ranks hold one model), "spread" (ranks of one
            model are as far apart as possible), or an order of D, P and T (replicas, stages,
            tensors), whose last letter varies fastest over the ranks. Default "cluster", which is
            "DPT"; "spread" is "TPD", as in SMP v1.
        optimize: "speed" or "memory": the quantity by which stages are balanced. Default None:
            speed.
        memory_weight: The same choice as a number from 0 (speed) to 1 (memory); pass at most one of
            the two.
        auto_partition: True: the planner assigns layers to stages. False: `smp.partition` in the
            script does. Default True.
        default_partition: With auto_partition=False: stage of layers that the script does not
            assign, from 0. Default None: such layers are an error.
        plan: Path of a saved plan, relative to the directory of the script; it sets the stages and
            their schedule. Default None.
        device_memory: Memory that a rank may use, in bytes or as text such as "16GiB". Default
            None: all memory of its device.
        sharding: "none" (each replica holds all its weights), "optimizer" (replicas shard the
            optimizer's state) or "full" (replicas shard weights and gradients too). Default "none".
        shard_degree: Replicas that shard together, at least 1; it divides their number. Default
            None: all.
        gradient_clipping: Largest L2 norm of all gradients together; larger ones are scaled down
            before each optimizer step. Default None: no clipping.
        bf16: With sharding: compute in bfloat16 with weights stored in float32. Default False.
        global_batch_size: Samples of one step over all replicas, at least 1, checked before the job
            starts. Default None: only the script knows it.
        seed: Seed of dropout and other random numbers, 0 to 2**63 - 1. Default 0.
        engine: `DataParallel` options for ranks, connections and timeouts, or a dict of them. Its
            `fusion_bytes` is for gradients that replicas sum.

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
        if isinstance(passed[1], Mapping):  # from JSON
            engine, faults = _engine(passed[1])
            object.__setattr__(self, "engine", engine)
        raise_all([*option_faults(self), *faults])

    def distribution(self) -> dict[str, Any]:
        """Return the options as the dict that `distribution=` takes."""
        return {"smdist": {"modelparallel": asdict(self)}}

    @classmethod
    def from_smp(
        cls, parameters: Mapping[str, Any], *, engine: DataParallel | None = None
    ) -> ModelParallel:
        """Return options from the `parameters` of AWS's model parallel library v1, with its
        defaults.

        Parameters that have no effect here and do not change the training's result cause a warning.

        Raises:
            OptionError: A key is unknown or not supported, or a value is wrong; all faults are
                reported, each with an alternative.
        """
        options = cls(**model_parallel_options(parameters), engine=engine or DataParallel())
        for warning in smp_warnings(parameters):
            warnings.warn(warning, stacklevel=2)
        return options

    def replicas(self, world_size: int) -> int | None:
        """Return the number of replicas on `world_size` ranks: 2 for 4 stages on 8 ranks; None
        while "auto".

        Raises:
            OptionError: The degrees or the batch do not fit `world_size` ranks; all faults.
        """
        raise_all(split_faults(self, world_size=world_size))
        return replicas_of(self, world_size)

    def batch_per_replica(self, world_size: int) -> int | None:
        """Return the samples of one replica's step: 32 of 64 for 2 replicas; None while unknown.

        Raises:
            OptionError: The degrees or the batch do not fit `world_size` ranks; all faults.
        """
        replicas = self.replicas(world_size)
        if self.global_batch_size is None or replicas is None:
            return None
        return self.global_batch_size // replicas

    def iterations(self, records: int) -> int | None:
        """Return the steps of an epoch of `records` samples; None without `global_batch_size`.

        The last step may be smaller.
        """
        size = self.global_batch_size
        return None if size is None else -(-records // size)


def _engine(section: Mapping[str, Any]) -> tuple[DataParallel, list[OptionError]]:
    """Return the options of a dict, or the default options and the dict's faults."""
    names = [option.name for option in fields(DataParallel)]
    faults = [
        OptionError(
            f"engine has the key {name!r}",
            "no such key exists",
            closest(str(name), names),
            about=str(name),
            kind="unknown",
        )
        for name in section
        if name not in names
    ]
    try:
        engine = DataParallel(**{name: section[name] for name in names if name in section})
    except OptionError as error:
        engine, faults = DataParallel(), [*faults, error]
    return engine, list(within(faults, "engine"))
