# SPDX-License-Identifier: Apache-2.0
"""Class for the arguments of a job that SageMaker reads, apart from its code and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.planning.service.limits import FREE, Limit, Limits

_GROUP: Final = {"InstanceGroupName", "InstanceType", "InstanceCount"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Arguments of a job that SageMaker reads, as the user passed them to an estimator.

    A field that is not described here is the estimator's argument of the same name. None, also as
    an element of a list or dict, stands for a value that was left out or is a pipeline variable.

    Attributes:
        limits: Limits from SageMaker's service model, by the name of the type ("shape"), such as
            "TagKey". A type that is missing here has no limits.
        passed: Names of the arguments that were passed, possibly as pipeline variables.
        runs_script: True if hyperparameters become the command line of a script.
        encodes_json: True if the SDK encodes hyperparameters as JSON, False if it calls str().
        is_written: True if the values in `hyperparameters` are encoded already.
        instance_groups: Instance groups, each a dict as in CreateTrainingJob.
        tags: List of {"Key": ..., "Value": ...} as in CreateTrainingJob, or a dict.
        region: Region of the job; None if unknown.
        bucket_regions: Region of each S3 bucket, as far as known.
    """

    limits: Limits = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    runs_script: bool = True
    encodes_json: bool = True
    is_written: bool = False
    role: Any = None
    image_uri: Any = None
    input_mode: Any = None
    hyperparameters: Any = None
    use_spot_instances: Any = None
    max_run: Any = None
    max_wait: Any = None
    max_retry_attempts: Any = None
    keep_alive_period_in_seconds: Any = None
    volume_size: Any = None
    volume_kms_key: Any = None
    output_kms_key: Any = None
    code_location: Any = None
    instance_groups: Any = None
    subnets: Any = None
    security_group_ids: Any = None
    enable_network_isolation: Any = None
    tags: Any = None
    metric_definitions: Any = None
    training_plan: Any = None
    training_recipe: Any = None
    training_repository_access_mode: Any = None
    training_repository_credentials_provider_arn: Any = None
    container_entry_point: Any = None
    container_arguments: Any = None
    region: str | None = None
    bucket_regions: Mapping[str, str] = field(default_factory=dict)

    def limit(self, shape: str) -> Limit:
        """Return the limits of one type of boto3's service model.

        `shape` is the name of the type, such as "TagKey". If `limits` does not have the type, the
        returned `Limit` allows every value.
        """
        return self.limits.get(shape, FREE)


def is_groups(given: Any) -> bool:
    """Return whether a value is a list of instance groups, each a dict as in CreateTrainingJob."""
    return isinstance(given, Sequence) and all(
        isinstance(each, Mapping) and set(each) == _GROUP for each in given
    )
