# SPDX-License-Identifier: Apache-2.0
"""Functions that read the facts about a job from a ModelTrainer; the checks need these facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import distribution_of
from sagemaker_dist.gathering import (
    find_plan,
    find_source,
    is_known_to_boto3,
    plain_count,
    service_limits,
)
from sagemaker_dist.packaging import is_sagemaker_dist_image
from sagemaker_dist.planning.job import PlanFile
from sagemaker_dist.trainer.trainer_config import SmdistConfig
from sagemaker_dist.trainer.trainer_job import Input, Training

_UNKNOWN: Final = frozenset({"PipelineVariable", "Unassigned"})  # classes of SageMaker's SDK
_INSTANCE: Final = ("ml.m5.xlarge", 1)  # ModelTrainer's defaults


def training_of(
    trainer: Any, inputs: Iterable[Any] | None = None, *, waits: bool = True
) -> Training:
    """Return the facts about the job that a ModelTrainer would start.

    Args:
        trainer: ModelTrainer, of SageMaker or of this package.
        inputs: Input data passed to `train`. They replace input data of the trainer that have the
            same name.
        waits: Value of `wait` passed to `train`.
    """
    source, distributed = trainer.source_code, trainer.distributed
    kind, count = instance_of(trainer.compute)
    runs_here = trainer.training_mode.name == "LOCAL_CONTAINER"
    image = known_value(trainer.training_image)
    root = str(trainer.local_container_root or "")
    options = distributed.options if isinstance(distributed, SmdistConfig) else None
    return Training(
        options=options,
        plan=_plan(options, source),
        launcher="" if distributed is None else type(distributed).__name__,
        image=image,
        uses_launcher=is_sagemaker_dist_image(image) or image is not trainer.training_image,
        has_source=source is not None,
        entry_script=_text(source, "entry_script"),
        command=_text(source, "command"),
        runs_here=runs_here,
        waits=waits,
        instance_type=kind,
        instance_count=count,
        num_groups=len(groups_of(trainer.compute)),
        known_to_boto3=is_known_to_boto3(kind),
        hyperparameters=_written(trainer.hyperparameters),
        environment=_environment(trainer.environment),
        inputs=tuple(_inputs([*(trainer.input_data_config or ()), *(inputs or ())])),
        root=root,
        deleted=tuple(_deleted_entries(Path(root), count))
        if runs_here and source is not None
        else (),
        limits=service_limits(),
    )


def _plan(options: Any, source: Any) -> PlanFile | None:
    """Return the file of saved parallel degrees and batch sizes that the option `plan` names.

    `options` are the options of `distributed=`. `source` is the SourceCode of the ModelTrainer. The
    result is None if there is no such option, or if the file cannot be looked up, for example
    because source_dir is in S3.
    """
    folder, script = _text(source, "source_dir"), _text(source, "entry_script")
    if not folder or not script:
        return None
    return find_plan(distribution_of(options), find_source(script, folder))


def known_value(value: Any) -> Any:
    """Return the value, or None if it is a pipeline variable or SageMaker's `Unassigned`."""
    is_unknown = any(each.__name__ in _UNKNOWN for each in type(value).__mro__)
    return None if is_unknown else value


def instance_of(compute: Any) -> tuple[Any, Any]:
    """Return the instance type and the number of hosts of a job, each None if unknown.

    `compute` is the Compute of the ModelTrainer, or None for its default. Both are None if the job
    has several instance groups.
    """
    if compute is None:
        return _INSTANCE
    groups = groups_of(compute)
    if len(groups) > 1:
        return None, None
    hosts = groups[0] if groups else compute
    kind, count = known_value(hosts.instance_type), known_value(hosts.instance_count)
    is_default = (kind, count) == (None, None) and not groups
    if is_default and not known_value(getattr(compute, "instance_preferences", None)):
        return _INSTANCE
    return kind, plain_count(count)


def groups_of(compute: Any) -> list[Any]:
    """Return the instance groups of a Compute; [] if it has none, or is None."""
    return list(known_value(getattr(compute, "instance_groups", None)) or ())


def _text(source: Any, name: str) -> str | None:
    """Return the field `name` of a SourceCode; "" if left out, None for a pipeline variable."""
    value = getattr(source, name, None)
    return "" if value is None else known_value(value)


def _written(given: Any) -> dict[str, str]:
    """Return the text that ModelTrainer sends for each hyperparameter, by name.

    Returns {} if `given`, the hyperparameters of the ModelTrainer, is not a dict. (If the user
    passes the path of a file, ModelTrainer has already replaced it by the file's content.)
    """
    if not isinstance(given, Mapping):
        return {}
    return {
        str(k): _serialized(v) for k, v in given.items() if v is None or known_value(v) is not None
    }


def _serialized(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def _environment(given: Any) -> dict[str, Any]:
    """Return the job's environment variables by name, with "" for pipeline variables.

    `given` is the attribute `environment` of the ModelTrainer: a dict, or None.
    """
    values = {name: known_value(value) for name, value in (given or {}).items()}
    return {name: "" if value is None else value for name, value in values.items()}


def _inputs(channels: Iterable[Any]) -> Iterable[Input]:
    by_name = {known_value(each.channel_name): each for each in channels}
    for name, each in by_name.items():
        if name is not None:
            content_type = known_value(getattr(each, "content_type", None))  # SDK v2 has none
            yield Input(name=str(name), content_type=content_type and str(content_type))


def _deleted_entries(root: Path, count: Any) -> Iterable[str]:
    """Yield names of existing entries of `root` that ModelTrainer deletes when the job has ended.

    Args:
        root: Directory local_container_root of the ModelTrainer, in which local jobs run.
        count: Number of hosts of the job.
    """
    hosts = range(1, count + 1) if type(count) is int else ()
    for name in ("input", "shared", *(f"algo-{number}" for number in hosts)):
        if (root / name).exists():
            yield name
