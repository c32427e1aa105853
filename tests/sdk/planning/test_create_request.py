# SPDX-License-Identifier: Apache-2.0
"""Options of a job are in the fields of CreateTrainingJob in which SageMaker reads them."""

import pytest

from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning.request.create_request import Resolved, training_request
from sagemaker_dist.planning.request.training_options import TrainingOptions

RESOLVED = Resolved(
    name="job",
    image="image:1",
    role="arn:aws:iam::123456789012:role/training",
    region="us-west-2",
    output="s3://bucket/out",
    code=None,
    script=None,
    distribution=Distribution(),
    parameters={},
    metrics=None,
)


def request_of(**options):
    hosts = {"instance_type": "ml.c5.xlarge", "instance_count": 1}
    return training_request(TrainingOptions(**hosts, **options), RESOLVED)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"environment": {"A": "b"}}, {"Environment": {"A": "b"}}),
        ({"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
         {"VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}}),
        ({"checkpoint_s3_uri": "s3://bucket/state", "checkpoint_local_path": "/state"},
         {"CheckpointConfig": {"S3Uri": "s3://bucket/state", "LocalPath": "/state"}}),
        ({"max_retry_attempts": 3}, {"RetryStrategy": {"MaximumRetryAttempts": 3}}),
        ({"tags": {"a": "b"}}, {"Tags": [{"Key": "a", "Value": "b"}]}),
        ({"use_spot_instances": True}, {"EnableManagedSpotTraining": True}),
        ({"enable_network_isolation": True}, {"EnableNetworkIsolation": True}),
        ({"encrypt_inter_container_traffic": True},
         {"EnableInterContainerTrafficEncryption": True}),
    ],
)  # fmt: skip
def test_an_option_adds_its_field_and_no_other(options, fields):
    assert {**request_of(), **fields} == request_of(**options)
