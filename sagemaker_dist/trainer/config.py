# SPDX-License-Identifier: Apache-2.0
"""`distributed=` of SageMaker's ModelTrainer for what our options are to an estimator.

ModelTrainer asks such an object for two things: what `distributed.json` in the
container holds, and which directory with which script goes there with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import model_serializer, model_validator

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse, render
from sagemaker_dist.errors import OptionError, closest, raise_all
from sagemaker_dist.trainer.sdk import find_sdk

if TYPE_CHECKING:
    from sagemaker.train.distributed import DistributedConfig
else:
    DistributedConfig = find_sdk()[1].DistributedConfig

_RANKS: Final = DataParallel()
_MODEL: Final = ModelParallel()
_DRIVER: Final = Path(__file__).parent / "driver" / "sagemaker_dist_driver.py"


class OurConfig(DistributedConfig):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """What asks our launcher, whatever the ranks are to do."""

    kind: ClassVar[type[DataParallel] | type[ModelParallel]]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Before pydantic, which would make a number of "8" and name no valid option."""
        if not isinstance(given, dict):
            return given
        if set(given) == {KEY}:  # what model_dump made
            return asdict(parse(json.dumps(given[KEY])))
        raise_all(_faults(cls, given))
        return given

    @property
    def options(self) -> DataParallel | ModelParallel:
        """The same as an estimator takes it."""
        return self.kind(**{name: getattr(self, name) for name in _names(self.kind)})

    @model_serializer
    def _document(self) -> dict[str, Any]:
        """`distributed.json`: as on the wire, below the name that says whose it is."""
        return {KEY: json.loads(render(self.options))}

    @property
    def driver_dir(self) -> str:
        """What ModelTrainer sends along."""
        return str(_DRIVER.parent)

    @property
    def driver_script(self) -> str:
        """What it runs of that."""
        return _DRIVER.name


class DataParallelConfig(OurConfig):
    """Replicate the model on every rank and average gradients each step.

        ModelTrainer(..., distributed=DataParallelConfig(processes_per_host=8))

    Takes what `sagemaker_dist.DataParallel` takes, where every option is explained.

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


class ModelParallelConfig(OurConfig):
    """Cut the model into stages on several ranks, with replicas of it beside each other.

        ModelTrainer(..., distributed=ModelParallelConfig(pipeline_parallel_degree=4))

    Takes what `sagemaker_dist.ModelParallel` takes, where every option is explained.

    Raises:
        pydantic.ValidationError: An option is unknown or out of its range; all faults are
            reported.
    """

    kind: ClassVar[type[DataParallel] | type[ModelParallel]] = ModelParallel
    pipeline_parallel_degree: int | str = _MODEL.pipeline_parallel_degree
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
    gradient_clipping: float | None = _MODEL.gradient_clipping
    bf16: bool = _MODEL.bf16
    global_batch_size: int | None = _MODEL.global_batch_size
    seed: int = _MODEL.seed
    engine: DataParallel = _MODEL.engine

    @classmethod
    def from_smp(
        cls, parameters: Mapping[str, Any], *, engine: DataParallel | None = None
    ) -> ModelParallelConfig:
        """Read the `parameters` of AWS's model parallel library v1, as `ModelParallel` does.

        Raises:
            OptionError: A key is unknown or not supported, or a value is wrong; all faults.
        """
        model = ModelParallel.from_smp(parameters, engine=engine)
        return cls(**{name: getattr(model, name) for name in _names(ModelParallel)})


def _names(kind: type[DataParallel] | type[ModelParallel]) -> list[str]:
    return [field.name for field in fields(kind)]


def _faults(asked: type[OurConfig], given: dict[str, Any]) -> Iterator[OptionError]:
    names = _names(asked.kind)
    for name in given:
        if name not in names:
            yield OptionError(
                f"{asked.__name__} was given {name}=",
                "no such option exists",
                closest(str(name), names),
            )
    try:
        asked.kind(**{name: given[name] for name in names if name in given})
    except OptionError as error:
        yield error
