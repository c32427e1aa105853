# SPDX-License-Identifier: Apache-2.0
"""What the checks of `planning` get to see of an estimator, when it is built and when it is fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sagemaker.estimator import Framework
from sagemaker.local import LocalSession as SageMakerLocalSession

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution
from sagemaker_dist.estimators import facts
from sagemaker_dist.estimators.local_session import LocalSession
from sagemaker_dist.gathering import as_count, find_obstacle, find_plan, is_known_to_boto3
from sagemaker_dist.packaging import FRAMEWORKS
from sagemaker_dist.planning import Job
from sagemaker_dist.planning.local_faults import CONTAINER_ONLY, NO_EFFECT

if TYPE_CHECKING:
    from sagemaker_dist.estimators.distributed import Distributed

_OTHER: Final = (
    "instance_groups",
    "training_recipe",
    "compiler_config",
    "use_spot_instances",
    *CONTAINER_ONLY,
    *NO_EFFECT,
)


def runs_here(instance_type: Any, session: Any) -> bool:
    """Whether our own runner runs the job; with a LocalSession of its own, SageMaker's SDK does."""
    is_container = instance_type in LOCAL and isinstance(session, (LocalSession, type(None)))
    return bool(instance_type == LOCAL_PROCESS or is_container)


def job_to_build(
    estimator: type[Distributed],
    asked: Distribution,
    given: Mapping[str, Any],
    *,
    image_is_ours: bool,
) -> Job:
    """The job of a constructor's arguments."""
    valid, framework = facts.known_arguments(estimator), estimator.framework
    instance_type = facts.settled(given.get("instance_type"))
    names = ("output_path", "checkpoint_s3_uri", "checkpoint_local_path", "base_job_name")
    session, has_image = given.get("sagemaker_session"), given.get("image_uri") is not None
    places = {name: find_obstacle(given.get(name)) for name in names[:2]}
    return Job(
        kind=estimator.kind,
        image_is_ours=image_is_ours,
        names_image=has_image,
        distribution=asked,
        instance_type=instance_type,
        instance_count=facts.settled(as_count(given.get("instance_count"))),
        known_to_boto3=is_known_to_boto3(instance_type),
        framework_version=None if has_image else facts.settled(given.get("framework_version")),
        image_version=FRAMEWORKS[framework].default if framework else "",
        own_session=isinstance(session, (LocalSession, type(None))),
        local_session=isinstance(session, (SageMakerLocalSession, type(None))),
        obstacles={name: obstacle for name, obstacle in places.items() if obstacle},
        environment=facts.environment(given.get("environment")),
        terms=facts.terms(given, is_framework=issubclass(estimator, Framework)),
        other={name: given.get(name) for name in _OTHER},
        keeps_checkpoints=bool(given.get("checkpoint_s3_uri")),
        unknown=tuple(name for name in given if name not in valid),
        valid=valid,
        **{name: facts.settled(given.get(name)) for name in names},
    )


def job_to_fit(estimator: Any, asked: Distribution, inputs: Any, job_name: Any) -> Job:
    """The job of an estimator, with the data that it is fit to."""
    session = estimator.sagemaker_session
    is_local = runs_here(estimator.instance_type, session)
    runner = getattr(session, "runner", None)
    source = facts.source(
        estimator.entry_point,
        estimator.source_dir,
        estimator.git_config,
        is_launched=is_local or asked.is_launched,
    )
    return Job(
        kind=estimator.kind,
        distribution=asked,
        instance_type=facts.settled(estimator.instance_type),
        instance_count=facts.settled(estimator.instance_count),
        job_name=facts.settled(job_name),
        terms=facts.estimator_terms(estimator),
        environment=facts.environment(estimator.environment),
        job_exists=bool(runner and job_name and runner.exists(job_name)),
        source=source,
        plan=find_plan(asked, source, getattr(estimator, "dependencies", None)),
        channels=facts.channels(
            inputs,
            input_mode=estimator.input_mode,
            file_systems=getattr(session, "file_systems", None),
        )
        + facts.model_channel(estimator.model_channel_name, estimator.model_uri),
    )
