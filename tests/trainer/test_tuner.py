# SPDX-License-Identifier: Apache-2.0
"""A tuner's jobs: SageMaker starts the image's `train`, and says what for in the same channel."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from sagemaker_dist.contract import parse
from sagemaker_dist.contract.job_secret import FILE
from sagemaker_dist.trainer import DataParallelConfig

pytestmark = pytest.mark.skipif(
    find_spec("sagemaker") is None or find_spec("sagemaker.train") is None,
    reason="SageMaker's SDK v2 tunes estimators alone",
)


@pytest.fixture
def tuned(sdk, arguments):
    """What the tuner makes of a trainer: its hyperparameters, and the files of sm_drivers."""
    from sagemaker.train.tuner import HyperparameterTuner

    trainers = []

    def make(distributed):
        code = sdk.SourceCode(
            source_dir="s3://bucket/code.tar.gz",
            entry_script="train.py",
            requirements="requirements.txt",
        )
        given = {"source_code": code, "hyperparameters": {"lr": 0.1}}
        trainer = sdk.ModelTrainer(**arguments(distributed=distributed) | given)
        HyperparameterTuner._prepare_model_trainer_for_tuning(trainer)
        trainers.append(trainer)
        [channel] = trainer._tuner_channels
        folder = Path(channel.data_source.file_system_data_source.directory_path)
        files = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
        files[FILE] = (folder / "distributed_drivers" / FILE).read_text()
        return trainer.hyperparameters, files

    yield make
    for trainer in trainers:
        trainer._tuner_temp_dir.cleanup()


def test_tuner_sends_what_train_reads(tuned):
    """tests/runtime/launch/test_trainer.py starts ranks of such files."""
    config = DataParallelConfig(processes_per_host=2)
    hyperparameters, files = tuned(config)

    assert 64 == len(files[FILE])
    assert config.options == parse(json.dumps(files["distributed.json"]["sagemaker_dist_config"]))
    assert ("train.py", "requirements.txt") == (
        files["sourcecode.json"]["entry_script"],
        files["sourcecode.json"]["requirements"],
    )
    assert {
        "lr": 0.1,
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
    } == hyperparameters
