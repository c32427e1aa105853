# SPDX-License-Identifier: Apache-2.0
"""`distributed=` of SageMaker's ModelTrainer for what `DataParallel` is to an estimator.

ModelTrainer asks such an object for two things: what `distributed.json` in the
container holds, and which directory with which script goes there with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import model_serializer, model_validator

from sagemaker_dist.contract import KEY, DataParallel, parse, render
from sagemaker_dist.errors import OptionError, closest, raise_all
from sagemaker_dist.trainer.sdk import find_sdk

if TYPE_CHECKING:
    from sagemaker.train.distributed import DistributedConfig
else:
    DistributedConfig = find_sdk()[1].DistributedConfig

_DEFAULTS: Final = DataParallel()
_NAMES: Final = tuple(field.name for field in fields(DataParallel))
_DRIVER: Final = Path(__file__).parent / "driver" / "sagemaker_dist_driver.py"


class DataParallelConfig(DistributedConfig):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Replicate the model on every rank and average gradients each step.

        ModelTrainer(..., distributed=DataParallelConfig(processes_per_host=8))

    Takes what `sagemaker_dist.DataParallel` takes, where every option is explained.

    Raises:
        pydantic.ValidationError: An option is unknown or out of its range; all faults are
            reported.
    """

    processes_per_host: int | None = _DEFAULTS.processes_per_host
    fusion_bytes: int = _DEFAULTS.fusion_bytes
    timeout_seconds: int = _DEFAULTS.timeout_seconds
    start_timeout_seconds: int = _DEFAULTS.start_timeout_seconds
    lanes: int | None = _DEFAULTS.lanes
    chunk_bytes: int | None = _DEFAULTS.chunk_bytes
    one_shot_bytes: int | None = _DEFAULTS.one_shot_bytes
    single_owner_bytes: int | None = _DEFAULTS.single_owner_bytes
    arriving_bytes: int | None = _DEFAULTS.arriving_bytes
    shard_weights: tuple[int, ...] | None = _DEFAULTS.shard_weights

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Before pydantic, which would make a number of "8" and name no valid option."""
        if not isinstance(given, dict):
            return given
        if set(given) == {KEY}:  # what model_dump made
            return asdict(parse(json.dumps(given[KEY])))
        raise_all(_faults(given))
        return given

    @property
    def options(self) -> DataParallel:
        """The same as an estimator takes it."""
        return DataParallel(**{name: getattr(self, name) for name in _NAMES})

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


def _faults(given: dict[str, Any]) -> Iterator[OptionError]:
    for name in given:
        if name not in _NAMES:
            yield OptionError(
                f"DataParallelConfig was given {name}=",
                "no such option exists",
                closest(str(name), _NAMES),
            )
    try:
        DataParallel(**{name: given[name] for name in _NAMES if name in given})
    except OptionError as error:
        yield error
