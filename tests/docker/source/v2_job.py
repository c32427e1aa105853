# SPDX-License-Identifier: Apache-2.0
"""A job of SageMaker's own SDK v2 on this machine, as its users write it.

python v2_job.py <image> <directory> <hosts> <hyperparameters as JSON>
"""

import json
import sys

import boto3
from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch

image, directory, hosts, hyperparameters = sys.argv[1:]
quiet = {"SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
session = LocalSession(
    boto3.Session(region_name="us-west-2"),
    sagemaker_config={"SchemaVersion": "1.0", **quiet},
)
session.config = {"local": {"local_code": True, "container_root": f"{directory}/root"}}
PyTorch(
    entry_point="train.py",
    source_dir=f"{directory}/script",
    image_uri=image,
    role="arn:aws:iam::000000000000:role/x",
    instance_type="local",
    instance_count=int(hosts),
    hyperparameters=json.loads(hyperparameters),
    output_path=f"file://{directory}/model",
    sagemaker_session=session,
).fit()
