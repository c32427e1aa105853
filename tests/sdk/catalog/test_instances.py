# SPDX-License-Identifier: Apache-2.0
"""The shipped table of instance types."""

import json
from importlib.resources import files

import botocore.session
import pytest

from sagemaker_dist.catalog import training_instances


def test_table_names_its_source_and_date():
    table = json.loads(files("sagemaker_dist.catalog").joinpath("instance_types.json").read_text())

    assert {"source", "date", "types"} == set(table)


def test_table_holds_only_types_that_boto3_knows():
    model = botocore.session.Session().get_service_model("sagemaker")

    assert set(training_instances()) <= set(model.shape_for("TrainingInstanceType").enum)


@pytest.mark.parametrize(
    ("name", "has_gpu", "count"),
    [("ml.p4d.24xlarge", True, 8), ("ml.trn1.32xlarge", False, 16), ("ml.c5.xlarge", False, 0)],
)
def test_accelerators(name, has_gpu, count):
    instance = training_instances()[name]

    assert (has_gpu, count) == (instance.has_gpu, instance.num_accelerators)
