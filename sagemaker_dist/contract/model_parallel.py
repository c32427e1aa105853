# SPDX-License-Identifier: Apache-2.0
"""`ModelParallel`, the options for splitting a model over ranks, checked when they are created.

The arithmetic of ranks is in `model_parallel_ranks`; the conversion of parameters of AWS's model
parallel library v1 (SMP v1) is in `smp.to_model_parallel`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Final

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.model_parallel_checks import option_faults
from sagemaker_dist.contract.model_parallel_ranks import replicas_of, split_faults
from sagemaker_dist.contract.schedule_limits import AUTO
from sagemaker_dist.contract.smp.to_model_parallel import model_parallel_options, smp_warnings
from sagemaker_dist.contract.unknown_option import KeywordOptions
from sagemaker_dist.errors import OptionError, closest, raise_all, within


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParallel(KeywordOptions):
    """Options for splitting a model over several ranks, and for training replicas of it.

    Attributes:
        pipeline_parallel_degree: Number of ranks over which one model is split, at least 1. It must
            divide the number of ranks of the job. Default "auto": the planner chooses the fastest
            number; with tensor parallelism, "auto" is 1.
        tensor_parallel_degree: Number of ranks over which each layer is split, at least 1; these
            ranks get the same batch. The product of this number and of the number of ranks of a
            pipeline must divide the number of ranks of the job. Default 1: layers are whole.
        sequence_parallel: True to split sequences over the same ranks between split layers, too, so
            that each rank stores a part of these activations; only with tensor_parallel_degree
            above 1. Default False.
        microbatches: Number of equal parts into which a replica's batch is divided, at least 1. It
            must divide the size of this batch. Default "auto": the planner chooses.
        pipeline: Pipeline schedule: "simple", "interleaved", "1f1b", "interleaved_1f1b",
            "looped_bfs", "zero_bubble", "zero_bubble_v" or "dualpipe_v". Default "auto": the
            planner chooses.
        active_microbatches: For the pipeline "interleaved": largest number of microbatches for
            which a rank has run the forward pass and not yet the backward pass, at least 1.
            Default None: number of ranks of one model + 2, as in SMP v1.
        virtual_stages: Number of stages on each rank, for schedules that allow several. Default
            None: the planner chooses.
        placement_strategy: Ranks on which the stages of one model are placed: "cluster" for
            neighbouring ranks, "spread" for ranks as far apart as possible, or an order of the
            letters D, P and T (replicas, stages, tensors). The last letter varies fastest with the
            rank, as in SMP v1: "cluster" is "DPT" and "spread" is "TPD". Default "cluster".
        optimize: Quantity that is balanced between stages: "speed" (their time) or "memory".
            Default None: "speed".
        memory_weight: Weight of memory against time when stages are balanced, a number from 0
            (only time) to 1 (only memory); cannot be combined with `optimize`. Default None:
            `optimize` decides.
        auto_partition: True if the planner assigns layers to stages. False if the script assigns
            them with `smp.partition`. Default True.
        default_partition: Stage, counted from 0, of layers that the script does not assign; only
            with auto_partition=False. Default None: such layers are an error.
        plan: Path of a saved plan, relative to the directory of the script; the plan sets the
            stages and their schedule. Default None: no plan.
        device_memory: Memory that a rank may use, in bytes or as text such as "16GiB". Default
            None: all memory of its device.
        sharding: State that replicas divide among each other, so that each stores only a shard:
            "none", "optimizer" (the optimizer's state) or "full" (also weights and gradients).
            "auto": the planner chooses it together with the other degrees, and also checkpoints
            activations of some modules if memory needs it. Default "none".
        shard_degree: Number of replicas that divide one copy of this state among each other, at
            least 1. It must divide the number of replicas. Default None: all replicas, or the
            planner's choice with sharding="auto".
        gradient_reduction: Time at which sharded gradients are reduced: "step" (after the last
            microbatch; whole gradients stay in memory until then) or "microbatch" (in each backward
            pass, module by module, with more messages). Default "auto": the planner chooses with
            sharding="auto"; otherwise "step".
        gradient_clipping: Largest L2 norm of all gradients together. Larger gradients are scaled
            down before the optimizer step. Default None: no clipping.
        bf16: True to compute in bfloat16, with float32 master weights that the optimizer updates;
            cannot be combined with fp16. Default False.
        offload_activations: True to keep activations in the host's memory between the forward and
            the backward pass of a training step. On CPUs this moves nothing. Default False.
        activation_loading_horizon: Largest number of layers whose activations are on the device at
            once, at least 1: those in use, those being copied to the host, and those that are
            loaded ahead of their use. A layer is one call of a module that is never split, for one
            microbatch. Only with offload_activations=True. Default None: 4, as in SMP v1.
        offload_optimizer: True to keep the optimizer's state, and float32 master weights, in the
            host's memory, and to run the optimizer's step on the CPU. On CPUs this moves nothing.
            Default False.
        global_batch_size: Samples of one step over all replicas, at least 1. Before the job starts,
            a check makes sure that this number can be divided by replicas and microbatches. Default
            None: not checked.
        seed: Seed of dropout and other random numbers, 0 to 2**63 - 1. Default 0.
        fp16: True to compute in float16, with float32 master weights that the optimizer updates.
            The loss is multiplied by a scale, which `smp.DistributedOptimizer` sets. Default False.
        engine: Options for ranks, connections and timeouts: a `DataParallel`, or a dict of such
            options. Here `fusion_bytes` is for gradients that replicas sum.

    Raises:
        OptionError: A value is wrong, or options exclude each other; all faults are reported.
    """

    nested: ClassVar[Mapping[str, type]] = {"engine": DataParallel}

    pipeline_parallel_degree: int | str = AUTO
    tensor_parallel_degree: int = 1
    sequence_parallel: bool = False
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
    gradient_reduction: str = AUTO
    gradient_clipping: float | None = None
    bf16: bool = False
    offload_activations: bool = False
    activation_loading_horizon: int | None = None
    offload_optimizer: bool = False
    global_batch_size: int | None = None
    seed: int = 0
    fp16: bool = False
    engine: DataParallel = field(default_factory=DataParallel)

    def __post_init__(self) -> None:
        faults: list[OptionError] = []
        passed: Any = (self.plan, self.engine)
        if isinstance(passed[0], os.PathLike):
            object.__setattr__(self, "plan", os.fspath(passed[0]))
        if isinstance(passed[1], Mapping):  # from JSON
            engine, faults = _engine(passed[1])
            object.__setattr__(self, "engine", engine)
        raise_all([*option_faults(self), *faults, *_elastic_faults(self.engine)])

    def distribution(self) -> dict[str, Any]:
        """Return the options as the dict that `distribution=` takes."""
        return {"smdist": {"modelparallel": asdict(self)}}

    @classmethod
    def from_smp(
        cls, parameters: Mapping[str, Any], *, engine: DataParallel | None = None
    ) -> ModelParallel:
        """Return options converted from `parameters` of AWS's model parallel library v1 (SMP v1).

        Missing parameters get the defaults of that library. A parameter that has no effect here,
        and does not change the result of the training, causes a UserWarning.

        Args:
            parameters: Keys and values of `distribution["smdistributed"]["modelparallel"]
                ["parameters"]`.
            engine: Options for ranks, connections and timeouts. Default None: `DataParallel()`.

        Raises:
            OptionError: A key is unknown or not supported, or a value is wrong; all faults are
                reported, each with an alternative.
        """
        options = cls(**model_parallel_options(parameters), engine=engine or DataParallel())
        for warning in smp_warnings(parameters):
            warnings.warn(warning, stacklevel=2)
        return options

    def replicas(self, world_size: int) -> int | None:
        """Return the number of replicas on `world_size` ranks.

        With a `pipeline_parallel_degree` of 4, 8 ranks have 2 replicas.

        Returns None if `pipeline_parallel_degree` is "auto" and layers are whole.

        Raises:
            OptionError: The degrees do not divide `world_size`, or the batch is not divisible; all
                faults are reported.
        """
        raise_all(split_faults(self, world_size=world_size))
        return replicas_of(self, world_size)

    def batch_per_replica(self, world_size: int) -> int | None:
        """Return the number of samples that one replica trains in one step on `world_size` ranks.

        With a `global_batch_size` of 64 and 2 replicas, this is 32.

        Returns None if `pipeline_parallel_degree` is "auto" or `global_batch_size` is None.

        Raises:
            OptionError: The degrees do not divide `world_size`, or the batch is not divisible; all
                faults are reported.
        """
        replicas = self.replicas(world_size)
        if self.global_batch_size is None or replicas is None:
            return None
        return self.global_batch_size // replicas

    def iterations(self, records: int) -> int | None:
        """Return the number of steps in an epoch of `records` samples.

        The last step may have fewer samples. Returns None if `global_batch_size` is None.
        """
        size = self.global_batch_size
        return None if size is None else -(-records // size)


_ENGINE_OPTIONS: Final = tuple(option.name for option in fields(DataParallel))


def _elastic_faults(engine: object) -> Iterator[OptionError]:
    if isinstance(engine, DataParallel) and engine.elastic_min is not None:
        yield OptionError(
            f"engine has elastic_min={engine.elastic_min}",
            "a lost host takes stages of a split model with it, which no other host has",
            "Leave elastic_min out, and save checkpoints",
            about=("engine", "elastic_min"),
            kind="unsupported",
        )


def _engine(section: Mapping[str, Any]) -> tuple[DataParallel, list[OptionError]]:
    """Return a `DataParallel` with the options in `section`, and the faults of `section`.

    `section` is a dict that was passed as the option `engine` of `ModelParallel`. If a value in the
    dict is wrong, the returned `DataParallel` has only default values.
    """
    names = _ENGINE_OPTIONS
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
