# SPDX-License-Identifier: Apache-2.0
"""Scripts find what SageMaker's own images would tell them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from error_fields import fields_of

from sagemaker_dist.contract import DataParallel, ModelParallel, World
from sagemaker_dist.errors import LaunchError, OptionError
from smdist.code_source import Source
from smdist.config import RuntimeConfig, read_rank_config
from smdist.container_files import Resources
from smdist.launch.environment import (
    kept_memory,
    rank_environment,
    script_arguments,
    sm_environment,
    threads_per_rank,
)
from smdist.launch.machine import HostResources, inspect_machine

TOOLKIT = """SM_HOSTS SM_CURRENT_HOST SM_NETWORK_INTERFACE_NAME SM_HPS SM_USER_ENTRY_POINT
SM_FRAMEWORK_PARAMS SM_RESOURCE_CONFIG SM_INPUT_DATA_CONFIG SM_OUTPUT_DATA_DIR SM_CHANNELS
SM_CURRENT_INSTANCE_TYPE SM_CURRENT_INSTANCE_GROUP SM_CURRENT_INSTANCE_GROUP_HOSTS
SM_INSTANCE_GROUPS SM_INSTANCE_GROUPS_DICT SM_DISTRIBUTION_INSTANCE_GROUPS SM_IS_HETERO
SM_MODULE_NAME SM_LOG_LEVEL SM_FRAMEWORK_MODULE SM_INPUT_DIR SM_INPUT_CONFIG_DIR SM_OUTPUT_DIR
SM_NUM_CPUS SM_NUM_GPUS SM_NUM_NEURONS SM_MODEL_DIR SM_MODULE_DIR SM_TRAINING_ENV SM_USER_ARGS
SM_OUTPUT_INTERMEDIATE_DIR SM_TOPOLOGY CURRENT_HOST SAGEMAKER_JOB_NAME SAGEMAKER_REGION"""
MODEL_TRAINER = """SM_MODEL_DIR SM_INPUT_DIR SM_INPUT_DATA_DIR SM_INPUT_CONFIG_DIR SM_OUTPUT_DIR
SM_OUTPUT_FAILURE SM_OUTPUT_DATA_DIR SM_LOG_LEVEL SM_MASTER_ADDR SM_MASTER_PORT SM_SOURCE_DIR
SM_ENTRY_SCRIPT SM_DISTRIBUTED_DRIVER_DIR SM_DISTRIBUTED_CONFIG SM_CHANNELS SM_HPS SM_CURRENT_HOST
SM_CURRENT_INSTANCE_TYPE SM_HOSTS SM_NETWORK_INTERFACE_NAME SM_HOST_COUNT SM_CURRENT_HOST_RANK
SM_NUM_CPUS SM_NUM_GPUS SM_NUM_NEURONS SM_RESOURCE_CONFIG SM_INPUT_DATA_CONFIG SM_TRAINING_ENV"""
HOSTS = ("algo-1", "algo-2", "algo-10")
WORLD = World(hosts=HOSTS, processes_per_host=2)
CONFIG = RuntimeConfig(
    base=Path("/opt/ml"),
    resources=Resources(
        current_host="algo-10",
        hosts=HOSTS,
        all_hosts=HOSTS,
        interface="lo",
        instance_type="ml.p5.48xlarge",
        document={"z": 1, "a": 2},
    ),
    source=Source(program="train.py", submit_directory="s3://b/c.tar.gz", region="eu-west-1"),
    channels={"train": {"TrainingInputMode": "File"}, "val-1": {}},
    hyperparameters={"batch-size": 8, "flag": True, "d": {"b": 1, "a": 2}, "name": "it's ü\n$x"},
    options=DataParallel(),
    document="{}",
    job_name="job-7",
)
SM = sm_environment(CONFIG, HostResources(num_cpus=96, num_gpus=8), WORLD)


@pytest.mark.parametrize("name", sorted({*TOOLKIT.split(), *MODEL_TRAINER.split()}))
def test_every_known_variable_is_there(name):
    assert name in SM


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SM_HOSTS", '["algo-1","algo-2","algo-10"]'),
        ("SM_CURRENT_HOST", "algo-10"),
        ("SM_CURRENT_HOST_RANK", "2"),
        ("SM_HOST_COUNT", "3"),
        ("SM_MASTER_ADDR", "algo-1"),
        ("SM_MASTER_PORT", "7777"),
        ("SM_CHANNELS", '["train","val-1"]'),
        ("SM_CHANNEL_TRAIN", "/opt/ml/input/data/train"),
        ("SM_CHANNEL_VAL-1", "/opt/ml/input/data/val-1"),
        ("SM_CHANNEL_VAL_1", "/opt/ml/input/data/val-1"),
        ("SM_HP_BATCH-SIZE", "8"),
        ("SM_HP_BATCH_SIZE", "8"),
        ("SM_HP_FLAG", "True"),
        ("SM_HP_D", '{"a":2,"b":1}'),
        ("SM_HP_NAME", "it's ü\n$x"),
        ("SM_RESOURCE_CONFIG", '{"a":2,"z":1}'),
        ("SM_NUM_GPUS", "8"),
        ("SM_NUM_CPUS", "96"),
        ("SM_MODEL_DIR", "/opt/ml/model"),
        ("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data"),
        ("SM_MODULE_NAME", "train"),
        ("SM_MODULE_DIR", "s3://b/c.tar.gz"),
        ("SM_INPUT_CONFIG_DIR", "/opt/ml/input/config"),
        ("SM_IS_HETERO", "False"),
        ("PYTHONUNBUFFERED", "1"),
    ],
)
def test_value(name, value):
    assert value == SM[name]


def test_documents_read_back():
    """JSON variables hold the decoded hyperparameters."""
    assert CONFIG.hyperparameters == json.loads(SM["SM_HPS"])
    assert script_arguments(CONFIG.hyperparameters) == json.loads(SM["SM_USER_ARGS"])

    env = json.loads(SM["SM_TRAINING_ENV"])

    assert CONFIG.hyperparameters == env["hyperparameters"]
    assert {"train", "val-1"} == set(env["channel_input_dirs"])
    assert env["is_master"] is False


def test_every_value_is_text():
    assert all(type(value) is str and "\0" not in value for value in SM.values())


@pytest.mark.parametrize(
    ("hyperparameters", "arguments"),
    [
        ({}, []),
        ({"b": 1, "aa": "x"}, ["--aa", "x", "-b", "1"]),
        ({"flag": True, "none": None}, ["--flag", "True", "--none", "None"]),
        ({"d": {"b": 1, "a": "x"}}, ["-d", "a=x,b=1"]),
        ({"list": [1, "a"]}, ["--list", "[1, 'a']"]),
        ({"text": 'it\'s "quoted"\n$(rm) ü'}, ["--text", 'it\'s "quoted"\n$(rm) ü']),
        ({"empty": ""}, ["--empty", ""]),
    ],
)
def test_script_arguments(hyperparameters, arguments):
    assert arguments == script_arguments(hyperparameters)


def test_nul_is_refused():
    with pytest.raises(OptionError) as caught:
        script_arguments({"x": "a\0b"})

    assert [("hyperparameters.x", "nul")] == fields_of(caught.value)
    assert str(caught.value) == (
        "the hyperparameter 'x' is 'a\\x00b': a command line cannot contain a NUL character."
        " Remove the NUL character, or pass the value in a file of an input channel."
    )


ADDRESSES = {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2", "algo-10": "10.0.0.10"}
LOOPBACK = {"algo-1": "127.0.0.1", "algo-2": "127.0.0.2", "algo-10": "127.0.0.3"}


@pytest.mark.parametrize(
    ("addresses", "cpus", "threads"),
    [(ADDRESSES, 96, 48), (ADDRESSES, 1, 1), (LOOPBACK, 96, 16), (LOOPBACK, 2, 1)],
)
def test_cpus_are_shared_fairly(addresses, cpus, threads):
    """Emulated hosts share one machine."""
    assert threads == threads_per_rank(HostResources(num_cpus=cpus), WORLD, addresses, "algo-10")


def test_rank_environment():
    variables = rank_environment(CONFIG, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert "10.0.0.10" == variables["SMDIST_ADDRESS"]
    assert "algo-10" == variables["SMDIST_HOST_LABEL"] == variables["SMDIST_HOST_ID"]
    assert str(25 * 1024 * 1024) == variables["SMDIST_FUSION_BYTES"]
    assert "1800" == variables["SMDIST_TIMEOUT_SECONDS"]
    assert "600" == variables["SMDIST_START_TIMEOUT_SECONDS"]
    assert ("4", "lo") == (variables["OMP_NUM_THREADS"], variables["GLOO_SOCKET_IFNAME"])
    assert "SMDIST_SECRET_FILE" not in variables
    assert not {"SMDIST_LANES", "SMDIST_SHARD_WEIGHTS"} & set(variables)


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_ranks_keep_memory_unless_the_user_sets_limits(name):
    """With one limit alone, glibc leaves the other where it starts, at 128 KiB."""
    config = replace(CONFIG, inherited={name: "1000"})
    variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)
    plain = rank_environment(CONFIG, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert not kept_memory({}).keys() & variables.keys()
    assert kept_memory({}).items() <= plain.items()
    assert name in kept_memory({})


@pytest.mark.parametrize(("inherited", "threads"), [({}, "4"), ({"OMP_NUM_THREADS": "7,2"}, "7")])
def test_tensorflow_computes_with_the_threads_of_a_rank(inherited, threads):
    """TensorFlow does not read OMP_NUM_THREADS, and would take every CPU in each rank."""
    config = replace(CONFIG, framework="tensorflow", inherited=inherited)
    variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)
    plain = rank_environment(CONFIG, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert threads == variables["TF_NUM_INTRAOP_THREADS"]
    assert "TF_NUM_INTRAOP_THREADS" not in plain


def test_ranks_are_told_what_was_asked():
    """What is None is not set, so that the user's own variable stays."""
    options = DataParallel(lanes=4, one_shot_bytes=0, shard_weights=(1, 2, 1))
    config = replace(CONFIG, options=options, inherited={"SMDIST_CHUNK_BYTES": "65536"})
    variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert ("4", "0") == (variables["SMDIST_LANES"], variables["SMDIST_ONE_SHOT_BYTES"])
    assert "1,2,1" == variables["SMDIST_SHARD_WEIGHTS"]
    assert not {"SMDIST_CHUNK_BYTES", "SMDIST_SINGLE_OWNER_BYTES"} & set(variables)


def test_ranks_are_told_of_protection():
    """A user's own variable gives way to the option, like that of a timeout."""
    for options in (DataParallel(), DataParallel(integrity="mac", encrypt=True)):
        config = replace(CONFIG, options=options, inherited={"SMDIST_ENCRYPT": "1"})
        variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)
        read = read_rank_config(variables)

        assert (options.integrity, options.encrypt) == (read.integrity, read.encrypt)


def test_ranks_receive_how_gpu_tensors_travel():
    """A user's own variable gives way to the option."""
    for option in ("auto", "nccl", "staged"):
        options = DataParallel(gpu_collectives=option)
        config = replace(CONFIG, options=options, inherited={"SMDIST_GPU_COLLECTIVES": "nccl"})
        variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)

        assert option == read_rank_config(variables).gpu_collectives


def test_ranks_receive_how_long_a_host_may_be_silent():
    """A user's own variable gives way to the option."""
    for seconds in (60, 900):
        options = DataParallel(silence_seconds=seconds)
        config = replace(CONFIG, options=options, inherited={"SMDIST_SILENCE_SECONDS": "5"})
        variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)

        assert seconds == read_rank_config(variables).silence_seconds


def test_ranks_receive_how_the_model_is_split(tmp_path):
    """They receive one document, in which the plan's path is absolute."""
    (tmp_path / "code/plans").mkdir(parents=True)
    (tmp_path / "code/plans/a.json").touch()
    model = ModelParallel(plan="plans/a.json", engine=DataParallel(lanes=4))
    config = replace(CONFIG, base=tmp_path, options=model.engine, model=model)
    variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)
    received = read_rank_config(variables).model_parallel

    assert "4" == variables["SMDIST_LANES"]
    assert replace(model, plan=str(tmp_path / "code/plans/a.json")) == received
    missing = replace(config, model=ModelParallel(plan="b.json"))
    with pytest.raises(LaunchError) as caught:
        rank_environment(missing, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert [("plan", "missing_file")] == fields_of(caught.value)


def test_the_users_own_settings_win():
    own = {"OMP_NUM_THREADS": "7", "SMDIST_HOST_ID": "rack-3"}
    config = replace(CONFIG, inherited=own, secret_file="/s")
    variables = rank_environment(config, HostResources(num_cpus=8), WORLD, ADDRESSES)

    assert "rack-3" == variables["SMDIST_HOST_ID"]

    assert "OMP_NUM_THREADS" not in variables
    assert "/s" == variables["SMDIST_SECRET_FILE"]


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, 3), ("0,2", 2), ("", 0), ("1,-1,2", 1), ("0,1,2,3,4", 3)]
)
def test_gpus_are_those_that_are_visible(tmp_path, monkeypatch, visible, gpus):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: H200 (UUID: x)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert gpus == inspect_machine(environ).num_gpus


def test_no_driver_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = inspect_machine({})

    assert 0 == machine.num_gpus
    assert len(os.sched_getaffinity(0)) == machine.num_cpus


def test_checkpoints_have_a_variable_that_can_be_moved():
    """Scripts find the directory that SageMaker keeps in step with S3."""
    moved = replace(CONFIG, inherited={"SM_CHECKPOINT_DIR": "/elsewhere"})
    machine = HostResources(num_cpus=1, num_gpus=0)

    assert SM["SM_CHECKPOINT_DIR"] == "/opt/ml/checkpoints"
    assert "SM_CHECKPOINT_DIR" not in sm_environment(moved, machine, WORLD)
