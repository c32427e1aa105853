# SPDX-License-Identifier: Apache-2.0
"""Values for `distributed=` of SageMaker's ModelTrainer, with the same options as for estimators.

ModelTrainer reads three things from such a value: the content of `distributed.json` in the
container, a directory to send with the job, and the script in this directory that starts the ranks.
The directory also contains a random secret.
"""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import model_serializer, model_validator

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse, render
from sagemaker_dist.contract.job_secret import FILE, new_secret, write_private
from sagemaker_dist.errors import OptionError, closest, raise_all
from sagemaker_dist.trainer.model_trainer_sdk import find_sdk

if TYPE_CHECKING:
    from sagemaker.train.distributed import DistributedConfig
else:
    DistributedConfig = find_sdk()[1].DistributedConfig

_RANKS: Final = DataParallel()
_MODEL: Final = ModelParallel()
_DRIVER: Final = Path(__file__).parent / "driver" / "sagemaker_dist_driver.py"


class SmdistConfig(DistributedConfig):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Base class of `DataParallelConfig` and `ModelParallelConfig`, the values for `distributed=`.

    Attributes:
        kind: Class whose options this object has, `DataParallel` or `ModelParallel`.
    """

    kind: ClassVar[type[DataParallel] | type[ModelParallel]]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Check the options before pydantic converts values such as "8", and return them as a dict.

        `given` is a dict of options by name, or the dict {"sagemaker_dist_config": options} that
        `model_dump` returned. Any other value is returned unchanged, and pydantic reports it.
        """
        if not isinstance(given, dict):
            return given
        if set(given) == {KEY}:  # written by model_dump
            return asdict(parse(json.dumps(given[KEY])))
        raise_all(_faults(cls, given))
        return given

    @property
    def options(self) -> DataParallel | ModelParallel:
        """Return the options as an object of the class that estimators take as `distribution=`."""
        return self.kind(**{name: getattr(self, name) for name in _names(self.kind)})

    @model_serializer
    def _document(self) -> dict[str, Any]:
        """Return the content of `distributed.json`, a dict {"sagemaker_dist_config": options}."""
        return {KEY: json.loads(render(self.options))}

    @property
    def driver_dir(self) -> str:
        """Return the path of the directory that ModelTrainer sends with the job.

        It contains the script that starts the ranks, and a secret from which each job derives its
        own.
        """
        return _driver_directory()

    @property
    def driver_script(self) -> str:
        """Return the name of the script in `driver_dir` that ModelTrainer runs in the container."""
        return _DRIVER.name


class DataParallelConfig(SmdistConfig):
    """Options of data parallel training: a replica of the model on every rank, gradients averaged.

        ModelTrainer(..., distributed=DataParallelConfig(processes_per_host=8))

    The options are those of `sagemaker_dist.DataParallel`, where they are documented.

    Raises:
        pydantic.ValidationError: An option is unknown or out of its range; all faults are
            reported.
    """

    kind: ClassVar[type[DataParallel] | type[ModelParallel]] = DataParallel
    processes_per_host: int | None = _RANKS.processes_per_host
    fusion_bytes: int = _RANKS.fusion_bytes
    timeout_seconds: int = _RANKS.timeout_seconds
    start_timeout_seconds: int = _RANKS.start_timeout_seconds
    lanes: int | None = _RANKS.lanes
    chunk_bytes: int | None = _RANKS.chunk_bytes
    one_shot_bytes: int | None = _RANKS.one_shot_bytes
    single_owner_bytes: int | None = _RANKS.single_owner_bytes
    arriving_bytes: int | None = _RANKS.arriving_bytes
    shard_weights: tuple[int, ...] | None = _RANKS.shard_weights
    integrity: str = _RANKS.integrity
    encrypt: bool = _RANKS.encrypt
    gpu_collectives: str = _RANKS.gpu_collectives
    silence_seconds: int = _RANKS.silence_seconds
    max_restarts: int = _RANKS.max_restarts
    elastic_min: int | None = _RANKS.elastic_min


class ModelParallelConfig(SmdistConfig):
    """Options for splitting a model into stages on several ranks, and for training replicas of it.

        ModelTrainer(..., distributed=ModelParallelConfig(pipeline_parallel_degree=4))

    The options are those of `sagemaker_dist.ModelParallel`, where they are documented.

    Raises:
        pydantic.ValidationError: An option is unknown or out of its range; all faults are
            reported.
    """

    kind: ClassVar[type[DataParallel] | type[ModelParallel]] = ModelParallel
    pipeline_parallel_degree: int | str = _MODEL.pipeline_parallel_degree
    tensor_parallel_degree: int = _MODEL.tensor_parallel_degree
    sequence_parallel: bool = _MODEL.sequence_parallel
    microbatches: int | str = _MODEL.microbatches
    pipeline: str = _MODEL.pipeline
    active_microbatches: int | None = _MODEL.active_microbatches
    virtual_stages: int | None = _MODEL.virtual_stages
    placement_strategy: str = _MODEL.placement_strategy
    optimize: str | None = _MODEL.optimize
    memory_weight: float | None = _MODEL.memory_weight
    auto_partition: bool = _MODEL.auto_partition
    default_partition: int | None = _MODEL.default_partition
    plan: str | None = _MODEL.plan
    device_memory: int | str | None = _MODEL.device_memory
    sharding: str = _MODEL.sharding
    shard_degree: int | None = _MODEL.shard_degree
    gradient_reduction: str = _MODEL.gradient_reduction
    gradient_clipping: float | None = _MODEL.gradient_clipping
    bf16: bool = _MODEL.bf16
    offload_activations: bool = _MODEL.offload_activations
    activation_loading_horizon: int | None = _MODEL.activation_loading_horizon
    offload_optimizer: bool = _MODEL.offload_optimizer
    global_batch_size: int | None = _MODEL.global_batch_size
    seed: int = _MODEL.seed
    fp16: bool = _MODEL.fp16
    engine: DataParallel = _MODEL.engine

    @classmethod
    def from_smp(
        cls, parameters: Mapping[str, Any], *, engine: DataParallel | None = None
    ) -> ModelParallelConfig:
        """Return a config with options converted from parameters of AWS's library SMP v1.

        `ModelParallel.from_smp` documents the conversion.

        Raises:
            OptionError: A key is unknown or not supported, or a value is wrong; all faults are
                reported.
        """
        model = ModelParallel.from_smp(parameters, engine=engine)
        return cls(**{name: getattr(model, name) for name in _names(ModelParallel)})


@cache
def _driver_directory() -> str:
    """Return a private directory with the driver and a new secret, removed when Python exits."""
    directory = mkdtemp(prefix="sagemaker-dist-driver-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    shutil.copy(_DRIVER, directory)
    write_private(Path(directory, FILE), new_secret())
    return directory


def _names(kind: type[DataParallel] | type[ModelParallel]) -> list[str]:
    return [field.name for field in fields(kind)]


def _faults(config: type[SmdistConfig], given: dict[str, Any]) -> Iterator[OptionError]:
    names = _names(config.kind)
    for name in given:
        if name not in names:
            yield OptionError(
                f"{config.__name__} has the argument {name}=",
                "no such option exists",
                closest(str(name), names),
                about=str(name),
                kind="unknown",
            )
    try:
        config.kind(**{name: given[name] for name in names if name in given})
    except OptionError as error:
        yield error
