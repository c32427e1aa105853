# SPDX-License-Identifier: Apache-2.0
"""What a job asks SageMaker for besides its code and its data.

Names are those of the estimator's arguments. A value of None, also inside a
list or a dict, is left out or known to a pipeline alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.planning.service.limits import FREE, Limit, Limits

_GROUP: Final = {"InstanceGroupName", "InstanceType", "InstanceCount"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The arguments of an estimator that SageMaker reads, as given.

    Attributes:
        limits: SageMaker's service model; a shape that it lacks has no limits.
        asked: The arguments that were given, be it for a pipeline to fill.
        runs_script: Hyperparameters become the command line of a script.
        encodes_json: The SDK writes hyperparameters as JSON, otherwise by str().
        is_written: It has written them as JSON already.
        instance_groups: Each as in CreateTrainingJob.
        tags: Pairs of Key and Value as in CreateTrainingJob, or a dict.
        region: Where the job runs, where that is known.
        bucket_regions: Where buckets lie, as far as that is known.
    """

    limits: Limits = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
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
        """What the service model says of a shape."""
        return self.limits.get(shape, FREE)


def is_groups(given: Any) -> bool:
    """Whether these are instance groups, each as in CreateTrainingJob."""
    return isinstance(given, Sequence) and all(
        isinstance(each, Mapping) and set(each) == _GROUP for each in given
    )
