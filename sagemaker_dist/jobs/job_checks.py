# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of a `TrainingJob`.

Most checks are functions of the package `sagemaker_dist.planning`. This module collects the facts
about the job that those functions need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution, claim_for_launcher, read_distribution
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import (
    cost_terms,
    find_obstacle,
    find_plan,
    find_source,
    is_known_to_boto3,
    plain_count,
    service_terms,
    with_parameters,
)
from sagemaker_dist.jobs.type_checks import kind_faults, missing_files
from sagemaker_dist.packaging import FRAMEWORKS, boto_session
from sagemaker_dist.packaging.frameworks import framework_faults
from sagemaker_dist.planning import (
    Budget,
    Channel,
    Job,
    budget_of,
    construction_faults,
    fit_faults,
    without_consequences,
)
from sagemaker_dist.planning.channel_checks import parse_channel
from sagemaker_dist.planning.distribution_support import GENERIC, TENSORFLOW
from sagemaker_dist.planning.local_faults import CONTAINER_ONLY, NO_EFFECT
from sagemaker_dist.planning.request import TrainingOptions, input_channels

_OTHER: Final = ("instance_groups", "use_spot_instances", *CONTAINER_ONLY, *NO_EFFECT)
_SOURCES: Final = {"S3DataSource", "FileDataSource", "FileSystemDataSource", "DatasetSource"}
_PLACES: Final = ("output_path", "checkpoint_s3_uri")


def is_local(options: TrainingOptions) -> bool:
    """Return whether the job's instance type is a local one, so that it runs on this machine."""
    return options.instance_type in {LOCAL_PROCESS, *LOCAL}


def distribution_of_job(options: TrainingOptions) -> Distribution:
    """Return the option `distribution` of a job, parsed for the sagemaker-dist launcher.

    Raises:
        OptionError: `distribution` is not valid.
    """
    return claim_for_launcher(read_distribution(with_parameters(options.distribution)))


def job_faults(options: TrainingOptions, *, region: str | None = None) -> list[OptionError]:
    """Return an error for each fault in a job's options that can be found without calling AWS.

    `region` is the AWS region of the job, or None if unknown.
    """
    return without_consequences(_job_faults(options, region))


def _job_faults(options: TrainingOptions, region: str | None) -> Iterator[OptionError]:
    wrong_types = list(kind_faults(options))
    if wrong_types:
        yield from wrong_types
        return
    distribution = Distribution()
    try:
        distribution = distribution_of_job(options)
    except OptionError as error:
        yield error
    budget = None
    try:
        budget = budget_of_job(options, region=region)
    except OptionError as error:
        yield error
    yield from framework_faults(options.framework)
    yield from _missing(options)
    yield from _place_faults(options.inputs)
    yield from missing_files(options)
    job = _job(options, distribution, region, budget)
    seen: set[str] = set()
    for fault in (*construction_faults(job), *fit_faults(job)):
        if str(fault) not in seen:
            seen.add(str(fault))
            yield fault


def job_to_check(options: TrainingOptions) -> Job:
    """Return the facts about a job from which the warnings for the user are computed."""
    return _job(options, distribution_of_job(options), None, None)


def budget_of_job(options: TrainingOptions, *, region: str | None) -> Budget | None:
    """Return the budget of a job; None without `max_cost`.

    `region` is the AWS region of the job; if it is None, it is that of boto3's own settings.

    Raises:
        OptionError: The budget is wrong, or a price is unknown; all faults are reported together.
        SetupError: A file of prices cannot be read.
    """
    given = {field.name: getattr(options, field.name) for field in fields(TrainingOptions)}
    given["instance_count"] = _count(options) or 1
    if options.instance_groups is not None:
        given["instance_groups"] = [_part(each) for each in options.instance_groups]
    needs_region = options.max_cost is not None and not is_local(options)
    if region is None and needs_region and options.price_per_hour is None:
        region = boto_session().region_name
    return budget_of(cost_terms(given, region=region))


def _missing(options: TrainingOptions) -> Iterator[OptionError]:
    if options.role is None and not is_local(options):
        yield OptionError(
            "role is left out",
            "the job runs with the permissions of an IAM role",
            "Pass the ARN or the name of a role",
            about="role",
            kind="missing",
        )
    if options.entry_point is None:
        for name in ("source_dir", "dependencies"):
            if getattr(options, name):
                yield OptionError(
                    f"{name} is set without entry_point",
                    f"{name} does not name the script to run",
                    f"Pass entry_point, or leave {name} out",
                    about=name,
                    kind="missing",
                )
        if options.image_uri is None:
            yield OptionError(
                "entry_point is left out",
                "the sagemaker-dist image runs a script",
                "Pass the path of the script",
                about="entry_point",
                kind="missing",
            )


def _place_faults(inputs: Any) -> Iterator[OptionError]:
    for part in input_channels(inputs):
        if not _is_place(part):
            source = part.get("DataSource")
            kind = next(iter(source), "dict") if isinstance(source, Mapping) else "dict"
            yield OptionError(
                f"channel {part['ChannelName']!r} is of type {kind}",
                "a value of this type does not name the place of the data",
                "Pass 's3://…', a Path, an S3Input or a FileSystemInput",
                about=("inputs", part["ChannelName"]),
                kind="type",
            )


def _is_place(part: Mapping[str, Any]) -> bool:
    source = part.get("DataSource")
    if not isinstance(source, Mapping) or not source or not set(source) <= _SOURCES:
        return False
    return all(isinstance(each, Mapping) for each in source.values())


def _job(
    options: TrainingOptions,
    distribution: Distribution,
    region: str | None,
    budget: Budget | None,
) -> Job:
    given = {field.name: getattr(options, field.name) for field in fields(TrainingOptions)}
    given["instance_count"] = _count(options)
    if budget is not None:
        given["max_run"] = budget.limit(options.max_run)
    obstacles = {name: find_obstacle(given[name]) for name in _PLACES}
    source = _source(options)
    return Job(
        kind=TENSORFLOW if options.framework == "tensorflow" else GENERIC,
        names_image=options.image_uri is not None,
        distribution=distribution,
        instance_type=options.instance_type,
        instance_count=None if options.instance_groups is not None else given["instance_count"],
        known_to_boto3=is_known_to_boto3(options.instance_type),
        obstacles={name: found for name, found in obstacles.items() if found},
        environment=options.environment,
        other={name: given.get(name) for name in _OTHER},
        keeps_checkpoints=bool(options.checkpoint_s3_uri),
        checkpoint_local_path=options.checkpoint_local_path,
        base_job_name=options.base_job_name,
        job_name=options.job_name,
        image_version=_version(options.framework),
        terms=_terms(options, given, region),
        source=source,
        plan=find_plan(distribution, source, options.dependencies),
        channels=_channels(options),
        **{name: given[name] for name in _PLACES},
    )


def _version(framework: str) -> str:
    return FRAMEWORKS[framework].default if framework in FRAMEWORKS else ""


def _count(options: TrainingOptions) -> Any:
    count = plain_count(options.instance_count)
    return 1 if count is None and options.instance_groups is None else count


def _terms(options: TrainingOptions, given: dict[str, Any], region: str | None) -> Any:
    groups = options.instance_groups
    parts = None if groups is None else [_part(each) for each in groups]
    lists = ("subnets", "security_group_ids", "metric_definitions")
    plain = {name: list(given[name]) if given[name] is not None else None for name in lists}
    terms = service_terms(
        {**given, **plain, "instance_groups": parts, "tags": _tags(options.tags)},
        passed=[name for name, value in given.items() if value is not None and value is not False],
        runs_script=options.entry_point is not None,
        encodes_json=options.entry_point is not None,
        region=region,
    )
    return replace(terms, hyperparameters=dict(options.hyperparameters))


def _part(group: Any) -> Any:
    return group.part() if hasattr(group, "part") else group


def _tags(tags: Any) -> Any:
    return tags if tags is None or hasattr(tags, "keys") else list(tags)


def _source(options: TrainingOptions) -> Any:
    if options.entry_point is None:
        return None
    return find_source(options.entry_point, options.source_dir, is_launched=True)


def _channels(options: TrainingOptions) -> tuple[Channel, ...]:
    channels = []
    for part in input_channels(options.inputs):
        if not _is_place(part):
            continue
        channel = parse_channel(part["ChannelName"], part, mode=options.input_mode)
        place = channel.directory
        exists = True if place is None else Path(place).exists()
        channels.append(replace(channel, exists=exists))
    return tuple(channels)
