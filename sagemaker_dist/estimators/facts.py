# SPDX-License-Identifier: Apache-2.0
"""Gathers what the checks of `planning` need to know about an estimator.

What only a pipeline will know (a PipelineVariable) becomes None here, which no
check touches.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sagemaker.estimator import Framework
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.local.local_session import file_input
from sagemaker.workflow import is_pipeline_variable

from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import as_terms, find_source
from sagemaker_dist.gathering.arguments import TERMS
from sagemaker_dist.planning import Channel, Source, Terms
from sagemaker_dist.planning.channels import parse_channel, parse_file_system

# Names of version 1 that SageMaker SDK 2.257.7 still reads (estimator.py).
_RENAMED: Final = frozenset(
    {
        "image_name",
        "is_nova_job",
        "train_instance_count",
        "train_instance_type",
        "train_max_run",
        "train_max_wait",
        "train_use_spot_instances",
        "train_volume_kms_key",
        "train_volume_size",
    }
)


def kind_faults(given: Mapping[str, Any]) -> Iterator[OptionError]:
    """Arguments that are of no kind by which a job could be told apart."""
    value = settled(given.get("instance_type"))
    if value is not None and not isinstance(value, str):
        what = f"instance_type is {value!r}"
        yield OptionError(what, "it is no text", "Pass a str such as 'ml.p4d.24xlarge'")


def settled(value: Any) -> Any:
    """The value, or None where only a pipeline will know it."""
    return None if is_pipeline_variable(value) else value


def known_arguments(estimator: type) -> frozenset[str]:
    """Every argument that a class of the estimator's family takes."""
    names = {
        name
        for each in estimator.__mro__
        if "__init__" in vars(each) and each is not object
        for name in inspect.signature(vars(each)["__init__"]).parameters
    }
    return frozenset(names) - {"self", "args", "kwargs"} | _RENAMED


def source(
    entry_point: Any, source_dir: Any, git_config: Any, *, is_launched: bool = False
) -> Source | None:
    """Where the entry point should lie, or None where it cannot be looked for."""
    places = (entry_point, source_dir)
    if git_config or entry_point is None or any(is_pipeline_variable(each) for each in places):
        return None
    return find_source(entry_point, source_dir, is_launched=is_launched)


def environment(given: Any) -> Any:
    """The variables of a job, with "" for what only a pipeline will know."""
    if not isinstance(given, Mapping):
        return {} if given is None or is_pipeline_variable(given) else given
    return {name: "" if is_pipeline_variable(value) else value for name, value in given.items()}


def terms(
    given: Mapping[str, Any],
    *,
    is_framework: bool = True,
    region: str | None = None,
    bucket_regions: Mapping[str, str] | None = None,
) -> Terms:
    """What SageMaker reads of an estimator's arguments.

    A generic estimator, which is no Framework, runs a script where it has an
    entry point, and writes hyperparameters as JSON where it has a source_dir.
    """
    given = {name.removeprefix("train_"): value for name, value in given.items()}  # see _RENAMED
    return as_terms(
        {name: _all_settled(value) for name, value in given.items()},
        asked=[name for name, value in given.items() if value is not None and value is not False],
        runs_script=is_framework or given.get("entry_point") is not None,
        encodes_json=is_framework or bool(given.get("source_dir")),
        region=region,
        bucket_regions=bucket_regions or {},
    )


def estimator_terms(estimator: Any) -> Terms:
    """The same of an estimator that was built: the SDK's defaults are in, and later changes.

    A generic one with a source_dir holds hyperparameters that are written already.
    """
    names = {"instance_type", "instance_count", "entry_point", *TERMS}
    given = {name: getattr(estimator, name, None) for name in names}
    given["hyperparameters"] = getattr(estimator, "_hyperparameters", None)
    given["enable_network_isolation"] = estimator.enable_network_isolation()
    found = terms(given, is_framework=isinstance(estimator, Framework))
    return replace(found, is_written=bool(getattr(estimator, "source_dir", None)))


def _all_settled(value: Any) -> Any:
    if isinstance(value, InstanceGroup):
        value = {
            "InstanceGroupName": value.instance_group_name,
            "InstanceType": value.instance_type,
            "InstanceCount": value.instance_count,
        }
    if isinstance(value, Mapping):
        return {name: _all_settled(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_settled(each) for each in value]
    return settled(value)


def as_file_systems(inputs: Any) -> Any:
    """Inputs of any job: efs:// and fsx:// become the file systems that they name, read-only."""
    if isinstance(inputs, Mapping):
        return {name: as_file_systems(value) for name, value in inputs.items()}
    if is_pipeline_variable(inputs) or not isinstance(inputs, str):
        return inputs
    place = parse_file_system(inputs)
    return inputs if place is None else FileSystemInput(place.id, place.kind, place.directory)


def as_uris(inputs: Any) -> Any:
    """Inputs of local processes: a Path says that it lies on this machine."""
    if isinstance(inputs, Path):
        return inputs.absolute().as_uri()
    if isinstance(inputs, Mapping):
        return {name: as_uris(value) for name, value in inputs.items()}
    return inputs


def model_channel(name: Any, uri: Any) -> tuple[Channel, ...]:
    """The channel that the SDK makes of model_uri."""
    return () if uri is None else (_channel(str(name), uri, "File", {}),)


def channels(
    inputs: Any, *, input_mode: Any = None, file_systems: Mapping[str, str] | None = None
) -> tuple[Channel, ...]:
    """The channels of `fit(inputs)`, in SageMaker's many spellings; `input_mode` is the job's."""
    if inputs is None or isinstance(inputs, list):
        return ()  # a list of RecordSets, which lie in S3
    named = inputs if isinstance(inputs, Mapping) else {"training": inputs}
    return tuple(
        _channel(str(name), value, input_mode, file_systems or {}) for name, value in named.items()
    )


def _channel(name: str, value: Any, mode: Any, file_systems: Mapping[str, str]) -> Channel:
    if is_pipeline_variable(value):
        return Channel(name=name)
    if isinstance(value, (str, Path)):
        channel = Channel(name=name, uri=str(value), mode=settled(mode))
    elif isinstance(value, (TrainingInput, file_input, FileSystemInput)):
        part = _known(value.config)
        channel = parse_channel(name, part, mode=settled(mode), file_systems=file_systems)
    else:
        channel = Channel(name=name, kind=type(value).__name__)
    place = channel.directory
    return channel if place is None else replace(channel, exists=Path(place).exists())


def _known(part: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a request without what only a pipeline will know."""
    return {
        name: _known(value) if isinstance(value, Mapping) else _all_settled(value)
        for name, value in part.items()
        if not is_pipeline_variable(value)
    }
