# SPDX-License-Identifier: Apache-2.0
"""Gathers what the checks of `planning` need to know about an estimator.

What only a pipeline will know (a PipelineVariable) becomes None here, which no
check touches.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from operator import index
from pathlib import Path
from typing import Any, Final

import botocore.session
from sagemaker.estimator import Framework
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.local.local_session import file_input
from sagemaker.workflow import is_pipeline_variable

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.contract.metrics import metric_definitions
from sagemaker_dist.contract.spelling import AWS, MODEL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning import Channel, Obstacle, Source, directory_of
from sagemaker_dist.planning.channels import parse_channel, parse_file_system
from sagemaker_dist.planning.locations import FILE, S3
from sagemaker_dist.planning.service import Limit, Terms

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


_TERMS: Final = frozenset(field.name for field in fields(Terms)) - {
    "limits", "asked", "runs_script", "encodes_json", "is_written", "region", "bucket_regions"
}  # fmt: skip
# Classes that Java's expressions have and Python's lack, as wider ones: nothing valid is refused.
_JAVA_CLASSES: Final = {
    r"\p{L}": r"\w", r"\p{N}": r"\w", r"\p{Alnum}": r"\w", r"\p{Z}": r"\s"
}  # fmt: skip


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


def is_known_to_boto3(instance_type: Any) -> bool:
    """Whether a type that the shipped table lacks is in boto3's newer service model."""
    table = {*training_instances(), *LOCAL, LOCAL_PROCESS}
    if not isinstance(instance_type, str) or instance_type in table:
        return False
    model = botocore.session.get_session().get_service_model("sagemaker")
    return instance_type in model.shape_for("TrainingInstanceType").enum


def source(
    entry_point: Any, source_dir: Any, git_config: Any, *, is_launched: bool = False
) -> Source | None:
    """Where the entry point should lie, or None where it cannot be looked for."""
    places = (entry_point, source_dir)
    if git_config or entry_point is None or any(is_pipeline_variable(each) for each in places):
        return None
    if source_dir is not None and str(source_dir).lower().startswith(S3):
        return Source(entry_point=str(entry_point), directory=str(source_dir), in_s3=True)
    directory = None if source_dir is None else str(source_dir)
    folder = Path(directory_of(directory)) if directory else Path()
    return Source(
        entry_point=str(entry_point),
        directory=directory,
        exists=(folder / str(entry_point)).is_file(),
        directory_exists=folder.is_dir(),
        is_launched=is_launched,
    )


def obstacle(uri: Any) -> Obstacle | None:
    """What keeps a file:// place from being written to, or None."""
    if not isinstance(uri, str) or not uri.startswith(FILE + "/"):
        return None
    path = Path(directory_of(uri))
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    return Obstacle(path=str(nearest), is_directory=nearest.is_dir())


def environment(given: Any) -> Any:
    """The variables of a job, with "" for what only a pipeline will know."""
    if not isinstance(given, Mapping):
        return {} if given is None or is_pipeline_variable(given) else given
    return {name: "" if is_pipeline_variable(value) else value for name, value in given.items()}


def count(value: Any) -> Any:
    """A number of hosts as a plain int, whoever's integer it was (numpy has its own)."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


def with_parameters(distribution: Any) -> Any:
    """A `distribution=` whose model parallel parameters are a file, with what is in the file.

    Raises:
        OptionError: The file cannot be read, or holds no JSON object.
    """
    path = _parameters(distribution)
    if not isinstance(path, str):
        return distribution
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unread(path, str(getattr(error, "strerror", None) or error)) from error
    if not isinstance(found, dict):
        raise _unread(path, f"it holds a {type(found).__name__}, not an object")
    model = {**distribution[AWS][MODEL], "parameters": found}
    return {**distribution, AWS: {**distribution[AWS], MODEL: model}}


def with_our_metrics(given: Any) -> Any:
    """Metric definitions, and those of our runtime's lines of other names; 40 in all at most.

    An empty list is an answer, and what a pipeline gives is left to it.
    """
    if given is not None and not (isinstance(given, list) and given):
        return given
    theirs: list[Any] = given or []
    names = [each.get("Name") for each in theirs if isinstance(each, Mapping)]
    own = [each for each in metric_definitions() if each["Name"] not in names]
    most = service_limits()["MetricDefinitionList"].most
    return theirs + own[: max(0, most - len(theirs)) if most else None]


def _parameters(distribution: Any) -> Any:
    for key in (AWS, MODEL, "parameters"):
        distribution = distribution.get(key) if isinstance(distribution, Mapping) else None
    return distribution


def _unread(path: str, why: str) -> OptionError:
    return OptionError(
        f"distribution[{AWS!r}][{MODEL!r}]['parameters'] is {path!r}",
        f"it cannot be read: {why}",
        "Pass the path of a JSON file, or a dict",
    )


@cache
def service_limits() -> Mapping[str, Limit]:
    """What the installed boto3 knows of CreateTrainingJob: shapes by their names."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    found: dict[str, Limit] = {}
    shapes = [model.operation_model("CreateTrainingJob").input_shape]
    while shapes:
        shape = shapes.pop()
        if shape.name not in found:
            found[shape.name] = _limit(shape.metadata)
            shapes += [*getattr(shape, "members", {}).values()]
            shapes += [getattr(shape, n) for n in ("member", "key", "value") if hasattr(shape, n)]
    return found


def _limit(metadata: Mapping[str, Any]) -> Limit:
    pattern = metadata.get("pattern")
    for java, ours in _JAVA_CLASSES.items():
        pattern = pattern and pattern.replace(java, ours)
    try:
        re.compile(pattern or "")
    except re.error:
        pattern = None
    return Limit(
        least=metadata.get("min"),
        most=metadata.get("max"),
        pattern=pattern,
        values=tuple(metadata.get("enum", ())),
    )


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
    return Terms(
        limits=service_limits(),
        asked=frozenset(
            name for name, value in given.items() if value is not None and value is not False
        ),
        runs_script=is_framework or given.get("entry_point") is not None,
        encodes_json=is_framework or bool(given.get("source_dir")),
        region=region,
        bucket_regions=bucket_regions or {},
        **{name: _all_settled(given.get(name)) for name in _TERMS},
    )


def estimator_terms(estimator: Any) -> Terms:
    """The same of an estimator that was built: the SDK's defaults are in, and later changes.

    A generic one with a source_dir holds hyperparameters that are written already.
    """
    names = {"instance_type", "instance_count", "entry_point", *_TERMS}
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
