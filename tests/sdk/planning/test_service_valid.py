# SPDX-License-Identifier: Apache-2.0
"""What SageMaker takes has no fault: every argument up to its limits, alone and with others."""

from string import ascii_letters, digits

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.gathering import service_limits
from sagemaker_dist.planning import Channel, Job, Limit, Terms, construction_faults, fit_faults

SMALL = "abcdefghijklmnopqrstuvwxyz" + digits
NAMES = st.text(ascii_letters + "_", min_size=1, max_size=30)
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])  # as a command line has
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(LETTERS, max_size=200)
IDS = st.text("abcdef" + digits, min_size=8, max_size=17)
BUCKETS = st.text(SMALL, min_size=3, max_size=63)
PLACES = st.builds("s3://{}/{}".format, BUCKETS, st.text(max_size=200).filter(str.isprintable))
KEYS = st.builds("arn:aws:kms:us-west-2:123456789012:key/{}".format, st.uuids())
TAGS = st.text(ascii_letters + digits + " äß_.:/=+-@", min_size=1, max_size=100).filter(
    lambda key: not key.lower().startswith("aws:")
)
SPOT = st.integers(1, 28 * 86400).flatmap(
    lambda run: st.fixed_dictionaries(
        {
            "use_spot_instances": st.just(True),
            "max_run": st.just(run),
            "max_wait": st.integers(run, 10**7),
        }
    )
)
WARM = st.fixed_dictionaries(
    {}, optional={"keep_alive_period_in_seconds": st.integers(0, 21600), "max_run": st.just(9)}
)
VPC = st.fixed_dictionaries(
    {
        "subnets": st.lists(IDS.map("subnet-{}".format), min_size=1, max_size=16),
        "security_group_ids": st.lists(IDS.map("sg-{}".format), min_size=1, max_size=5),
    }
)
HOSTS = st.just({"instance_type": "ml.c5.xlarge", "instance_count": 2}) | st.fixed_dictionaries(
    {
        "instance_groups": st.lists(
            st.builds(InstanceGroup, NAMES, st.just("ml.p4d.24xlarge"), st.integers(1, 9)),
            min_size=1,
            max_size=5,
            unique_by=lambda group: group.instance_group_name,
        )
    }
)
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "hyperparameters": st.dictionaries(
            NAMES.filter(lambda name: not name.startswith("sagemaker_")), VALUES, max_size=95
        ),
        "environment": st.dictionaries(NAMES, st.text(max_size=512), max_size=100).map(
            lambda each: {name: value.replace("\0", "") for name, value in each.items()}
        ),
        "role": st.sampled_from(["training", "arn:aws-cn:iam::123456789012:role/a/b+c=,.@-_"]),
        "image_uri": st.sampled_from(["mine:1", "host:5000/mine@sha256:" + "0" * 64]),
        "input_mode": st.sampled_from(["File", "Pipe", "FastFile"]),
        "volume_size": st.integers(0, 16384),
        "volume_kms_key": KEYS | st.uuids().map(str),
        "output_kms_key": KEYS | st.just("alias/mine"),
        "code_location": PLACES,
        "output_path": PLACES,
        "checkpoint_s3_uri": PLACES,
        "max_retry_attempts": st.integers(1, 30),
        "tags": st.dictionaries(TAGS, TAGS | st.just(""), max_size=50),
        "metric_definitions": st.lists(
            st.sampled_from(
                [
                    {"Name": "loss", "Regex": r"loss=([0-9\.]+)"},
                    {"Name": "train:loss", "Regex": r"(?<=loss: )(-?\d+(\.\d+)?(e[+-]?\d+)?)"},
                    {"Name": "of Java", "Regex": r"(?<loss>\p{Digit}++)"},
                ]
            ),
            max_size=40,
        ),
        "container_arguments": st.lists(
            st.text(ascii_letters, max_size=256), min_size=1, max_size=99
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.tuples(HOSTS, SPOT | WARM, VPC | st.just({}), OTHERS))
def test_what_sagemaker_takes_has_no_fault(parts):
    """Neither when the estimator is made nor when it is fit."""
    asked = {name: value for part in parts for name, value in part.items()}
    job = Job(
        instance_type=asked.get("instance_type"),
        instance_count=asked.get("instance_count"),
        terms=estimator_facts.terms(asked),
        environment=estimator_facts.environment(asked.get("environment")),
        output_path=asked.get("output_path"),
        checkpoint_s3_uri=asked.get("checkpoint_s3_uri"),
        channels=(Channel(name="training", uri="s3://bucket/data", mode=asked.get("input_mode")),),
    )

    assert [] == [str(fault) for fault in (*construction_faults(job), *fit_faults(job))]


def test_a_shape_that_boto3_lacks_has_no_limits():
    """An older boto3 knows less, and so refuses less."""
    terms = Terms(image_uri="x" * 999, volume_size=-1, input_mode="Stream", tags={"": "<>"})

    assert [] == list(construction_faults(Job(instance_type="ml.c5.xlarge", terms=terms)))


@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        ("HyperParameters", Limit(least=0, most=100)),
        ("HyperParameterValue", Limit(least=0, most=2500, pattern=".*")),
        ("KeepAlivePeriodInSeconds", Limit(least=0, most=21600)),
        ("MaximumRetryAttempts", Limit(least=1, most=30)),
        ("TrainingInputMode", Limit(values=("Pipe", "File", "FastFile"))),
        ("VpcSecurityGroupIds", Limit(least=1, most=5)),
    ],
)
def test_limits_are_those_of_the_service_model(shape, limit):
    assert limit == service_limits()[shape]
