# SPDX-License-Identifier: Apache-2.0
"""The ModelTrainer of whichever SageMaker SDK is installed: v2 here, v3 by `make test-v3`."""

from importlib import import_module
from types import SimpleNamespace

import pytest

from sagemaker_dist.trainer.model_trainer_sdk import find_sdk


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No AWS account is looked for, and nobody is told of it."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("SAGEMAKER_SUPPRESS_V2_WARNING", "1")


@pytest.fixture(scope="session")
def sdk():
    """What a user imports of it."""
    trainer, distributed = find_sdk()
    configs = import_module(distributed.__name__.replace("distributed", "configs"))
    return SimpleNamespace(
        ModelTrainer=trainer.ModelTrainer,
        Mode=trainer.Mode,
        MetricDefinition=trainer.MetricDefinition,
        Torchrun=distributed.Torchrun,
        MPI=distributed.MPI,
        SourceCode=configs.SourceCode,
        Compute=configs.Compute,
        InputData=configs.InputData,
        InstanceGroup=configs.InstanceGroup,
        Session=None if ".modules." not in trainer.__name__ else trainer.Session,  # v2 wants one
    )


@pytest.fixture
def arguments(sdk, tmp_path):
    """A job that is right, in containers of this machine; parts of it replaced."""
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    root.mkdir()
    for name in ("train.py", "train.sh", "needs.txt"):
        (source / name).touch()

    def make(*, kind="local_cpu", hosts=2, script="train.py", command=None, **given):
        if "compute" not in given:
            given["compute"] = sdk.Compute(instance_type=kind, instance_count=hosts)
        code = sdk.SourceCode(source_dir=str(source), entry_script=script, command=command)
        return {
            "training_mode": sdk.Mode.LOCAL_CONTAINER,
            "training_image": "sagemaker-dist:0.1.0-torch",
            "base_job_name": "job",
            "source_code": code,
            "local_container_root": str(root),
            **given,
        }

    return make


@pytest.fixture
def request_of(sdk):
    """What a trainer would ask for; its temporary files go with the test."""
    trainers = []

    def make(trainer):
        trainers.append(trainer)
        if trainer.sagemaker_session is None and sdk.Session:
            trainer.sagemaker_session = sdk.Session()
        return trainer._create_training_job_args()

    yield make
    for trainer in trainers:
        trainer._temp_code_dir.cleanup()
