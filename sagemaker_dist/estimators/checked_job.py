# SPDX-License-Identifier: Apache-2.0
"""Facts about an estimator's job, collected at construction and at `fit`, for all checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker.estimator import Framework
from sagemaker.local import LocalSession as SageMakerLocalSession

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution
from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.estimators.local_session import LocalSession
from sagemaker_dist.gathering import find_obstacle, find_plan, is_known_to_boto3, plain_count
from sagemaker_dist.packaging import FRAMEWORKS
from sagemaker_dist.planning import Job
from sagemaker_dist.planning.local_faults import CONTAINER_ONLY, NO_EFFECT

_OTHER: Final = (
    "instance_groups",
    "training_recipe",
    "compiler_config",
    "use_spot_instances",
    *CONTAINER_ONLY,
    *NO_EFFECT,
)


def runs_here(instance_type: Any, session: Any) -> bool:
    """Return whether sagemaker-dist runs the jobs of an estimator on this machine.

    The result is True for the instance type "local_process". For "local" and "local_gpu", it is
    True if `session` is None or a LocalSession of sagemaker_dist. With a LocalSession of
    SageMaker's SDK, the SDK runs the containers.
    """
    is_container = instance_type in LOCAL and isinstance(session, (LocalSession, type(None)))
    return bool(instance_type == LOCAL_PROCESS or is_container)


def job_to_build(
    estimator: Any,  # a subclass of Distributed, whose module imports this one
    distribution: Distribution,
    given: Mapping[str, Any],
    *,
    uses_launcher: bool,
) -> Job:
    """Return the facts about a job from the arguments of an estimator's constructor.

    Args:
        estimator: Class of the estimator.
        distribution: Parsed argument `distribution`.
        given: All other arguments.
        uses_launcher: Whether the sagemaker-dist launcher starts the job's ranks.
    """
    valid, framework = estimator_facts.known_arguments(estimator), estimator.framework
    instance_type = estimator_facts.known_value(given.get("instance_type"))
    names = ("output_path", "checkpoint_s3_uri", "checkpoint_local_path", "base_job_name")
    session, has_image = given.get("sagemaker_session"), given.get("image_uri") is not None
    places = {name: find_obstacle(given.get(name)) for name in names[:2]}
    return Job(
        kind=estimator.kind,
        uses_launcher=uses_launcher,
        names_image=has_image,
        distribution=distribution,
        instance_type=instance_type,
        instance_count=estimator_facts.known_value(plain_count(given.get("instance_count"))),
        known_to_boto3=is_known_to_boto3(instance_type),
        framework_version=None
        if has_image
        else estimator_facts.known_value(given.get("framework_version")),
        image_version=FRAMEWORKS[framework].default if framework else "",
        own_session=isinstance(session, (LocalSession, type(None))),
        local_session=isinstance(session, (SageMakerLocalSession, type(None))),
        obstacles={name: obstacle for name, obstacle in places.items() if obstacle},
        environment=estimator_facts.environment(given.get("environment")),
        terms=estimator_facts.terms(given, is_framework=issubclass(estimator, Framework)),
        other={name: given.get(name) for name in _OTHER},
        keeps_checkpoints=bool(given.get("checkpoint_s3_uri")),
        unknown=tuple(name for name in given if name not in valid),
        valid=valid,
        **{name: estimator_facts.known_value(given.get(name)) for name in names},
    )


def job_to_fit(estimator: Any, distribution: Distribution, inputs: Any, job_name: Any) -> Job:
    """Return the facts about the job that `estimator.fit(inputs, job_name=job_name)` would start.

    `distribution` is the parsed argument `distribution` of the estimator.
    """
    session = estimator.sagemaker_session
    is_local = runs_here(estimator.instance_type, session)
    runner = getattr(session, "runner", None)
    source = estimator_facts.source(
        estimator.entry_point,
        estimator.source_dir,
        estimator.git_config,
        is_launched=is_local or distribution.is_launched,
    )
    return Job(
        kind=estimator.kind,
        distribution=distribution,
        instance_type=estimator_facts.known_value(estimator.instance_type),
        instance_count=estimator_facts.known_value(estimator.instance_count),
        job_name=estimator_facts.known_value(job_name),
        terms=estimator_facts.estimator_terms(estimator),
        environment=estimator_facts.environment(estimator.environment),
        job_exists=bool(runner and job_name and runner.exists(job_name)),
        source=source,
        plan=find_plan(distribution, source, getattr(estimator, "dependencies", None)),
        channels=estimator_facts.channels(
            inputs,
            input_mode=estimator.input_mode,
            file_systems=getattr(session, "file_systems", None),
        )
        + estimator_facts.model_channel(estimator.model_channel_name, estimator.model_uri),
    )
