# SPDX-License-Identifier: Apache-2.0
"""Facts about an estimator's arguments, for the checks in `planning`.

Values of SageMaker's pipeline variables are not known before the job runs. They become None, which
the checks ignore.
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
from sagemaker_dist.gathering import find_source, service_terms
from sagemaker_dist.gathering.arguments import TERMS
from sagemaker_dist.planning import Channel, Source, Terms
from sagemaker_dist.planning.channel_checks import parse_channel, parse_file_system

# Names of version 1 that SageMaker SDK 2.257.7 still accepts (estimator.py).
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
    """Yield an error if the argument instance_type is not a str, which the other checks expect.

    `given` has the arguments of the estimator's constructor, by name.
    """
    value = known_value(given.get("instance_type"))
    if value is not None and not isinstance(value, str):
        what = f"instance_type is {value!r}"
        hint = "Pass a str such as 'ml.p4d.24xlarge'"
        yield OptionError(what, "the value is not a str", hint, "instance_type", kind="type")


def known_value(value: Any) -> Any:
    """Return the value itself, or None if it is a pipeline variable of SageMaker's SDK."""
    return None if is_pipeline_variable(value) else value


def known_arguments(estimator: type) -> frozenset[str]:
    """Return the names of all arguments that the constructors of a class and its parents take."""
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
    """Return the place of the script; None if the script is not on this machine, or is not known.

    The first three arguments are arguments of an estimator. `is_launched` is True if the
    sagemaker-dist launcher runs the script.
    """
    places = (entry_point, source_dir)
    if git_config or entry_point is None or any(is_pipeline_variable(each) for each in places):
        return None
    return find_source(entry_point, source_dir, is_launched=is_launched)


def environment(given: Any) -> Any:
    """Return the job's environment variables, with "" as the value of pipeline variables.

    `given` is the argument `environment` of an estimator. The result is {} if `given` is None or
    a pipeline variable. A `given` of a wrong type is returned unchanged.
    """
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
    """Return the arguments of an estimator for which SageMaker's API has limits.

    Args:
        given: Arguments of the estimator.
        is_framework: True if the estimator is a Framework of the SDK. Any other estimator runs a
            script only with an entry_point, and encodes hyperparameters as JSON only with a
            source_dir.
        region: AWS region of the job, or None if unknown.
        bucket_regions: Bucket -> its AWS region, for buckets whose region is known.
    """
    given = {name.removeprefix("train_"): value for name, value in given.items()}  # see _RENAMED
    return service_terms(
        {name: _known_values(value) for name, value in given.items()},
        passed=[name for name, value in given.items() if value is not None and value is not False],
        runs_script=is_framework or given.get("entry_point") is not None,
        encodes_json=is_framework or bool(given.get("source_dir")),
        region=region,
        bucket_regions=bucket_regions or {},
    )


def estimator_terms(estimator: Any) -> Terms:
    """Return the attributes of an estimator for which SageMaker's API has limits.

    The values are the present ones, with defaults of the SDK and later changes of the user.
    """
    names = {"instance_type", "instance_count", "entry_point", *TERMS}
    given = {name: getattr(estimator, name, None) for name in names}
    given["hyperparameters"] = getattr(estimator, "_hyperparameters", None)
    given["enable_network_isolation"] = estimator.enable_network_isolation()
    found = terms(given, is_framework=isinstance(estimator, Framework))
    return replace(found, is_written=bool(getattr(estimator, "source_dir", None)))


def _known_values(value: Any) -> Any:
    if isinstance(value, InstanceGroup):
        value = {
            "InstanceGroupName": value.instance_group_name,
            "InstanceType": value.instance_type,
            "InstanceCount": value.instance_count,
        }
    if isinstance(value, Mapping):
        return {name: _known_values(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known_values(each) for each in value]
    return known_value(value)


def expand_file_systems(inputs: Any) -> Any:
    """Return `inputs`, the argument of `fit`, with URIs of file systems replaced.

    Each efs:// or fsx:// URI becomes a read-only FileSystemInput of the SDK.
    """
    if isinstance(inputs, Mapping):
        return {name: expand_file_systems(value) for name, value in inputs.items()}
    if is_pipeline_variable(inputs) or not isinstance(inputs, str):
        return inputs
    place = parse_file_system(inputs)
    return inputs if place is None else FileSystemInput(place.id, place.kind, place.directory)


def expand_paths(inputs: Any) -> Any:
    """Return `inputs`, the argument of `fit` of a local job, with each Path as a file:// URI."""
    if isinstance(inputs, Path):
        return inputs.absolute().as_uri()
    if isinstance(inputs, Mapping):
        return {name: expand_paths(value) for name, value in inputs.items()}
    return inputs


def model_channel(name: Any, uri: Any) -> tuple[Channel, ...]:
    """Return a tuple with the channel that the SDK creates for the argument `model_uri`.

    `name` is the channel's name, `uri` the value of `model_uri`. If `uri` is None, the tuple is
    empty.
    """
    return () if uri is None else (_channel(str(name), uri, "File", {}),)


def channels(
    inputs: Any, *, input_mode: Any = None, file_systems: Mapping[str, str] | None = None
) -> tuple[Channel, ...]:
    """Return the channels that `fit(inputs)` creates; `inputs` has any type that the SDK accepts.

    `input_mode` is the input mode of the job, for channels without one. `file_systems` maps the id
    of a file system to the directory of this machine where it is mounted.
    """
    if inputs is None or isinstance(inputs, list):
        return ()  # a list of RecordSets, which are in S3
    named = inputs if isinstance(inputs, Mapping) else {"training": inputs}
    return tuple(
        _channel(str(name), value, input_mode, file_systems or {}) for name, value in named.items()
    )


def _channel(name: str, value: Any, mode: Any, file_systems: Mapping[str, str]) -> Channel:
    if is_pipeline_variable(value):
        return Channel(name=name)
    if isinstance(value, (str, Path)):
        channel = Channel(name=name, uri=str(value), mode=known_value(mode))
    elif isinstance(value, (TrainingInput, file_input, FileSystemInput)):
        part = _known(value.config)
        channel = parse_channel(name, part, mode=known_value(mode), file_systems=file_systems)
    else:
        channel = Channel(name=name, kind=type(value).__name__)
    place = channel.directory
    return channel if place is None else replace(channel, exists=Path(place).exists())


def _known(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a dict from a request, without keys whose value is a pipeline variable."""
    return {
        name: _known(value) if isinstance(value, Mapping) else _known_values(value)
        for name, value in part.items()
        if not is_pipeline_variable(value)
    }
