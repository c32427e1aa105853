# SPDX-License-Identifier: Apache-2.0
"""Inputs and options in the requests of jobs of the sagemaker-dist launcher; moto plays SageMaker.

Each request must equal its golden row in snapshots/options.json and, except for our
hyperparameter, the parent's request. After an intended change:

    SMDIST_UPDATE_SNAPSHOTS=1 pytest tests/sdk/estimators/test_request_options.py
"""

import json
from pathlib import Path

import pytest
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch as TheirPyTorch
from snapshots import IS_UPDATE, difference, merged

from sagemaker_dist import DataParallel, OnInstanceGroup, PyTorch
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.contract.metrics import metric_definitions

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
]

GOLDEN = Path(__file__).parent / "snapshots" / "options.json"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
ROLE = "arn:aws:iam::123456789012:role/training"
VPC = {"subnets": ["subnet-0a1b2c3d"], "security_group_ids": ["sg-0a1b2c3d", "sg-1a2b3c4d"]}
ARN = "arn:aws:kms:us-west-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/large"
LAMBDA = "arn:aws:lambda:us-west-2:123456789012:function:credentials"
FSX = "fs-0123456789abcdef0"
GROUPS = [InstanceGroup("train", "ml.c5.9xlarge", 2), InstanceGroup("prepare", "ml.c5.xlarge", 1)]
IN_GROUPS = {
    "instance_type": None,
    "instance_count": None,
    "instance_groups": GROUPS,
    "distribution": OnInstanceGroup(strategy=DataParallel(), group="train"),
}
DATA = "s3://bucket/data"

BASE = "prefix"  # the row that the golden file tells in full, and what others change of it
ROWS = {  # what is passed to fit, and what else to the constructor
    "no input": (None, {}),
    "prefix": (DATA, {}),
    "two prefixes": ({"train": "s3://bucket/a", "test": "s3://bucket/b"}, {}),
    "sharded": (TrainingInput(DATA, distribution="ShardedByS3Key", input_mode="File"), {}),
    "fast file": ({"train": TrainingInput(DATA, input_mode="FastFile")}, {}),
    "pipe": (
        {
            "train": TrainingInput(
                DATA,
                input_mode="Pipe",
                compression="Gzip",
                record_wrapping="RecordIO",
                content_type="text/csv",
                shuffle_config=ShuffleConfig(7),
            )
        },
        {},
    ),
    "pipes by default": (DATA, {"input_mode": "Pipe"}),
    "manifest": (TrainingInput("s3://bucket/list", s3_data_type="ManifestFile"), {}),
    "augmented manifest": (
        TrainingInput(
            "s3://bucket/list",
            s3_data_type="AugmentedManifestFile",
            attribute_names=["source-ref", "label"],
            input_mode="Pipe",
        ),
        {},
    ),
    "inputs of groups": (
        {
            "train": TrainingInput("s3://bucket/a", instance_groups=["train"]),
            "raw": TrainingInput("s3://bucket/b", instance_groups=["prepare"]),
        },
        IN_GROUPS,
    ),
    "groups": (DATA, IN_GROUPS),
    "FSx for Lustre": ({"train": FileSystemInput(FSX, "FSxLustre", "/mount/data")}, VPC),
    "EFS": ({"train": FileSystemInput(FSX, "EFS", "/data")}, VPC),
    "EFS, to write": ({"train": FileSystemInput(FSX, "EFS", "/data", "rw")}, VPC),
    "model": (DATA, {"model_uri": "s3://bucket/model.tar.gz", "model_channel_name": "start"}),
    "spot": (
        DATA,
        {
            "use_spot_instances": True,
            "max_run": 3600,
            "max_wait": 7200,
            "checkpoint_s3_uri": "s3://bucket/checkpoints",
        },
    ),
    "checkpoints elsewhere": (
        DATA,
        {"checkpoint_s3_uri": "s3://bucket/checkpoints", "checkpoint_local_path": "/state"},
    ),
    "retries": (DATA, {"max_retry_attempts": 3}),
    "retries with a limit": (DATA, {"max_retry_attempts": 3, "max_run": 60, "max_wait": 90}),
    "key of the volume": (DATA, {"volume_kms_key": ARN, "volume_size": 100}),
    "key of the output": (DATA, {"output_kms_key": ARN, "output_path": "s3://bucket/output"}),
    "VPC": (DATA, VPC),
    "encrypted traffic": (DATA, {"encrypt_inter_container_traffic": True}),
    "network isolation": (DATA, {"enable_network_isolation": True}),
    "all of the network": (
        DATA,
        {**VPC, "encrypt_inter_container_traffic": True, "enable_network_isolation": True},
    ),
    "keep alive": (DATA, {"keep_alive_period_in_seconds": 600}),
    "tags": (DATA, {"tags": [{"Key": "team", "Value": "vision"}]}),
    "metrics": (DATA, {"metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]}),
    "environment": (DATA, {"environment": {"NCCL_DEBUG": "INFO"}}),
    "training plan": (DATA, {"training_plan": PLAN}),
    "placement": (
        DATA,
        {
            "instance_placement_config": {
                "EnableMultipleJobs": True,
                "PlacementSpecifications": [{"UltraServerId": "ultra-1", "InstanceCount": 2}],
            }
        },
    ),
    "command": (
        DATA,
        {"container_entry_point": ["train"], "container_arguments": ["--quiet"]},
    ),
    "uncompressed output": (DATA, {"disable_output_compression": True}),
    "remote debugging": (DATA, {"enable_remote_debug": True}),
    "checks of the cluster": (DATA, {"enable_infra_check": True}),
    "session tags": (DATA, {"enable_session_tag_chaining": True}),
    "registry in the VPC": (
        DATA,
        {
            **VPC,
            "training_repository_access_mode": "Vpc",
            "training_repository_credentials_provider_arn": LAMBDA,
        },
    ),
    "code elsewhere": (DATA, {"code_location": "s3://bucket/code"}),
    "hyperparameters": (DATA, {"hyperparameters": {"lr": 0.1, "name": "x", "sizes": [1, 2]}}),
}
SHORT = {  # another spelling of a row's inputs
    "FSx for Lustre": {"train": f"fsx://{FSX}/mount/data"},
    "EFS": {"train": f"efs://{FSX}/data"},
    "prefix": {"training": DATA},
}


@pytest.fixture
def ask(session, script):
    """Return a function that returns the request of a fit, and its estimator."""

    def fit(kind, inputs, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": ROLE,
            "image_uri": IMAGE,
            "instance_type": "ml.c5.9xlarge",
            "instance_count": 2,
            "sagemaker_session": session,
            "distribution": DataParallel(),
        }
        session.requests.clear()
        built = kind(**{**arguments, **changes})
        built.fit(inputs, wait=False)
        (request,) = session.requests
        text = json.dumps(request).replace(request["TrainingJobName"], "NAME")
        return with_short_metrics(json.loads(text)), built

    return fit


def with_short_metrics(request):
    """Return a request with one word in place of the runtime's metric definitions."""
    algorithm, ours = request["AlgorithmSpecification"], metric_definitions()
    given = algorithm.get("MetricDefinitions", [])
    if given[-len(ours) :] == ours:
        algorithm["MetricDefinitions"] = [*given[: -len(ours)], "those of the smdist runtime"]
    return request


@pytest.fixture(scope="module")
def goldens():
    """Return the rows of the golden file; in update mode, write the rows that the tests found."""
    written = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {BASE: {}, "rows": {}}
    known = {name: merged(written[BASE], row) for name, row in written["rows"].items()}
    found = {}
    yield found if IS_UPDATE else known
    if IS_UPDATE:
        rows = {name: row for name, row in {**known, **found}.items() if name in ROWS}
        GOLDEN.write_text(json.dumps(packed(rows), indent=1, sort_keys=True) + "\n")


def packed(rows):
    base = rows[BASE]
    return {BASE: base, "rows": {name: difference(base, row) for name, row in rows.items()}}


@pytest.mark.parametrize("name", ROWS)
def test_an_option_changes_what_it_ever_changed(ask, goldens, name):
    """A request equals its golden row; the parent's differs by our hyperparameter, debugger and
    profiler.
    """
    inputs, changes = ROWS[name]
    request, built = ask(PyTorch, inputs, **changes)
    assert DataParallel() == parse(request["HyperParameters"].pop(KEY))
    own = request["HyperParameters"].pop("sagemaker_distribution_instance_groups", None)
    if IS_UPDATE:
        goldens[name] = request
    without = {"debugger_hook_config": False, "disable_profiler": True, "distribution": None}
    more = {  # as ours has it, with what is its own; the golden row shows that
        "metric_definitions": built.metric_definitions,
        "enable_sagemaker_metrics": built.enable_sagemaker_metrics,
        "environment": built.environment,
    }
    theirs, _ = ask(TheirPyTorch, inputs, **{**changes, **without, **more})

    assert goldens.get(name) == request, "see the module's docstring"
    assert theirs == request
    assert (json.dumps(["train"]) if changes is IN_GROUPS else None) == own


@pytest.mark.parametrize("name", SHORT)
def test_a_short_form_asks_for_the_same(ask, name):
    inputs, changes = ROWS[name]

    assert ask(PyTorch, inputs, **changes)[0] == ask(PyTorch, SHORT[name], **changes)[0]


@pytest.mark.skipif(IS_UPDATE, reason="the file is being written")
def test_every_golden_row_has_a_test(goldens):
    """The golden file has a row for each test, in the format that the tests write."""
    assert set(ROWS) == set(goldens)
    assert packed(goldens) == json.loads(GOLDEN.read_text())
