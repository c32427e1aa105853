# SPDX-License-Identifier: Apache-2.0
"""`distributed=DataParallelConfig()`: the options of DataParallel, checked by it, as ModelTrainer
wants them."""

import json
import stat
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised
from pydantic import ValidationError

from sagemaker_dist import DataParallel, ModelParallel
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.contract.job_secret import FILE
from sagemaker_dist.trainer import DataParallelConfig, ModelParallelConfig, check

GIVEN = {"processes_per_host": 8, "fusion_bytes": 2**20, "lanes": 2, "shard_weights": [1, 2]}


def test_it_has_the_options_of_data_parallel():
    """All of them, with the same defaults."""
    config = DataParallelConfig()

    assert [each.name for each in fields(DataParallel)] == list(type(config).model_fields)
    assert DataParallel() == config.options
    assert DataParallel(**GIVEN) == DataParallelConfig(**GIVEN).options


def test_its_file_is_the_wire_below_our_name():
    written = json.loads(json.dumps(DataParallelConfig(**GIVEN).model_dump()))

    assert [KEY] == list(written)
    assert DataParallel(**GIVEN) == parse(json.dumps(written[KEY]))
    assert DataParallelConfig(**GIVEN) == DataParallelConfig.model_validate(written)


def test_its_directory_has_the_driver_and_a_private_secret():
    """ModelTrainer sends both; the secret is in neither the options nor the script."""
    config = DataParallelConfig()
    files = {path.name: path for path in Path(config.driver_dir).iterdir()}

    assert {config.driver_script, FILE} == set(files)
    assert 64 == len(files[FILE].read_bytes())
    assert 0o600 == stat.S_IMODE(files[FILE].stat().st_mode)
    secret = files[FILE].read_text()
    assert secret not in json.dumps(config.model_dump()) + files[config.driver_script].read_text()


def test_all_faults_come_at_once():
    with pytest.raises(ValidationError) as caught:
        DataParallelConfig(fusoin_bytes=1, lanes=99, processes_per_host="8")

    assert (
        "3 faults in this request:\n  1. DataParallelConfig has the argument fusoin_bytes=: no"
        " such option exists. Did you mean 'fusion_bytes'?\n  2. processes_per_host is '8': a"
        " host starts between 1 and 1024 ranks. Pass an integer from 1 to 1024.\n  3. lanes is"
        " 99: two ranks open between 1 and 16 connections. Pass an integer from 1 to 16."
    ) in str(caught.value)


def wrong_fields(call):
    """Return the fields of our error inside the ValidationError that a call raises."""
    with pytest.raises(ValidationError) as caught:
        call()
    (wrong,) = caught.value.errors()
    return fields_of(wrong["ctx"]["error"])


@pytest.mark.parametrize("value", [True, 8.0, "8", 0])
def test_pydantic_bends_no_value(value):
    found = wrong_fields(lambda: DataParallelConfig(processes_per_host=value))

    assert [("processes_per_host", "option")] == found


def test_assignment_is_checked():
    config = DataParallelConfig()

    assert [("lanes", "option")] == wrong_fields(lambda: setattr(config, "lanes", 0))

    config.lanes = 3

    assert 3 == config.options.lanes


def test_trainer_sends_it(sdk, arguments, request_of):
    """SageMaker's own ModelTrainer, unmodified: its channel has our options and our driver."""
    config = DataParallelConfig(**GIVEN, integrity="mac")
    trainer = sdk.ModelTrainer(**arguments(distributed=config, hyperparameters={"n": 3}))
    request = request_of(trainer)
    channels = {each.channel_name: each for each in request["input_data_config"]}
    sent = Path(channels["sm_drivers"].data_source.file_system_data_source.directory_path)

    options = asdict(config.options) | {"shard_weights": [1, 2], "integrity": "mac"}
    del options["gpu_collectives"]  # a default that only a document of version 6 has
    del options["silence_seconds"]  # a default that only a document of version 7 has
    del options["max_restarts"]  # of version 7
    del options["elastic_min"]  # a default that only a document of version 7 has
    assert options == json.loads((sent / "distributed.json").read_text())[KEY]["dataparallel"]
    assert "distributed_drivers/sagemaker_dist_driver.py" in (sent / "sm_train.sh").read_text()
    driver = sent / "distributed_drivers/sagemaker_dist_driver.py"
    assert Path(config.driver_dir, config.driver_script).read_text() == driver.read_text()
    assert {"n": "3"} == request["hyper_parameters"]


def test_driver_directory_takes_nobodys_place(sdk):
    """It is copied over the SDK's own drivers, which other jobs may want."""
    ours = DataParallelConfig()
    theirs = Path(sdk.Torchrun().driver_dir)

    names = {path.name for path in Path(ours.driver_dir).glob("*.py")}

    assert {ours.driver_script} == names
    assert not names & {path.name for path in theirs.iterdir()}


MODEL = {"pipeline_parallel_degree": 4, "device_memory": "16GiB", "engine": {"lanes": 2}}


def test_model_parallel_has_a_config_of_its_own():
    """With all options and defaults of ModelParallel; its file is a document of version 3."""
    config = ModelParallelConfig(**MODEL)
    written = json.loads(json.dumps(config.model_dump()))

    assert [each.name for each in fields(ModelParallel)] == list(type(config).model_fields)
    assert ModelParallel() == ModelParallelConfig().options
    assert ModelParallel(**MODEL) == config.options == parse(json.dumps(written[KEY]))
    assert config == ModelParallelConfig.model_validate(written)


def test_all_faults_of_a_split_come_at_once():
    assert [
        ("microbatchs", "unknown"),
        ("shard_degree", "conflict"),
        ("engine.lane", "unknown"),
    ] == wrong_fields(
        lambda: ModelParallelConfig(microbatchs=1, shard_degree=2, engine={"lane": 4})
    )


def test_awss_parameters_are_read():
    config = ModelParallelConfig.from_smp({"partitions": 2}, engine=DataParallel(lanes=2))

    assert ModelParallel.from_smp({"partitions": 2}, engine=DataParallel(lanes=2)) == config.options


def test_a_split_that_does_not_fit_is_found(sdk, arguments, tmp_path):
    """Ranks, and the plan: `check` asks nobody."""
    model = {**MODEL, "pipeline_parallel_degree": 3, "plan": "plan.json"}
    del model["device_memory"]
    model["engine"] = {"processes_per_host": 2}
    trainer = sdk.ModelTrainer(**arguments(distributed=ModelParallelConfig(**model)))

    assert [
        ("pipeline_parallel_degree", "indivisible"),
        ("plan", "missing_file"),
    ] == fields_raised(lambda: check(trainer))
