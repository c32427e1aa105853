# SPDX-License-Identifier: Apache-2.0
"""Arguments of a job that SageMaker reads, apart from its code and data.

Names are those of the estimator's arguments. None, also inside a list or dict, means left out or a
pipeline variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.planning.service.limits import FREE, Limit, Limits

_GROUP: Final = {"InstanceGroupName", "InstanceType", "InstanceCount"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Arguments of an estimator that SageMaker reads, as the user passed them.

    Attributes:
        limits: Limits of SageMaker's service model; missing shapes have no limits.
        passed: Names of the arguments that were passed, possibly as pipeline variables.
        runs_script: Whether hyperparameters become the command line of a script.
        encodes_json: Whether the SDK writes hyperparameters as JSON, otherwise by str().
        is_written: Whether hyperparameters are already written as JSON.
        instance_groups: Groups in the form of CreateTrainingJob.
        tags: Pairs of Key and Value as in CreateTrainingJob, or a dict.
        region: Region of the job, or None if unknown.
        bucket_regions: Regions of buckets, as far as known.
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
        """Return the service model's limit of a shape."""
        return self.limits.get(shape, FREE)


def is_groups(given: Any) -> bool:
    """Return whether the value is a list of instance groups in CreateTrainingJob's form."""
    return isinstance(given, Sequence) and all(
        isinstance(each, Mapping) and set(each) == _GROUP for each in given
    )
