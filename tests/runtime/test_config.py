# SPDX-License-Identifier: Apache-2.0
"""What SageMaker writes is read once, decoded, and refused where it contradicts itself."""

import json
import socket
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, render
from sagemaker_dist.errors import LaunchError, SkewError
from smdist.config import (
    PORT,
    STOP_SECONDS,
    read_base,
    read_guard_config,
    read_rank_config,
    read_runtime_config,
)
from smdist.tuning import TuningConfig


@pytest.fixture
def read(tmp_path):
    """Write the three files and read them back."""

    def write_and_read(hyperparameters=None, resources=None, channels=None, **environ):
        folder = tmp_path / "input/config"
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "hyperparameters": hyperparameters,
            "resourceconfig": resources,
            "inputdataconfig": channels,
        }
        for name, content in files.items():
            if content is not None:
                (folder / f"{name}.json").write_text(json.dumps(content))
        return read_runtime_config({"SAGEMAKER_BASE_DIR": str(tmp_path), **environ})

    return write_and_read


def test_base_is_opt_ml_unless_set():
    assert Path("/opt/ml") == read_base({})
    assert Path("/x") == read_base({"SAGEMAKER_BASE_DIR": "/x"})


def test_nothing_there_is_one_plain_host(read):
    """No file at all: one host, no hyperparameters, no world."""
    config = read()

    assert ("127.0.0.1",) == config.resources.hosts == config.resources.all_hosts
    assert "127.0.0.1" == config.resources.current_host
    assert {} == config.hyperparameters == config.channels
    assert {} == config.resources.groups
    assert config.options is None
    assert (PORT, STOP_SECONDS) == (config.port, config.stop_seconds)


@pytest.mark.parametrize(
    ("sent", "read_back"),
    [
        ('"text"', "text"),
        ("raw text", "raw text"),
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ('{"a": [1]}', {"a": [1]}),
        ('"3"', "3"),
        ('it\'s\n"quoted" ü', 'it\'s\n"quoted" ü'),
        ("", ""),
        (7, 7),
        ([1, "a"], [1, "a"]),
    ],
)
def test_hyperparameters_are_decoded_where_they_are_json(read, sent, read_back):
    """JSON-encoded, raw and already decoded values all arrive."""
    config = read({"key": sent})

    assert {"key": read_back} == config.hyperparameters


def test_sagemakers_own_hyperparameters_are_not_the_users(read):
    """`sagemaker_*` and a tuner's note stay out; unknown ones become framework parameters."""
    config = read(
        {
            "epochs": "3",
            "sagemaker_program": '"train.py"',
            "sagemaker_job_name": '"job-7"',
            "sagemaker_container_log_level": "10",
            "sagemaker_new_thing": "1",
            "_tuning_objective_metric": "loss",
        }
    )

    assert {"epochs": 3} == config.hyperparameters
    assert {"sagemaker_new_thing": 1} == config.framework_parameters
    assert ("train.py", "job-7", 10) == (
        config.source.program,
        config.job_name,
        config.log_level,
    )


@pytest.mark.parametrize("encode", [str, json.dumps, json.loads], ids=["raw", "json", "object"])
def test_options_are_read_in_every_encoding(read, encode):
    """The SDK encodes once more, the plain API does not, a runner may write an object."""
    options = DataParallel(processes_per_host=2)

    assert options == read({KEY: encode(render(options))}).options


def test_newer_document_is_refused(read):
    with pytest.raises(SkewError):
        read({KEY: '{"version": 99, "dataparallel": {}}'})


def test_flags_of_sagemakers_sdk_are_framework_parameters(read):
    """SageMaker's toolkit does the same; `launch.launch_request` reads what they request."""
    flags = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_distribution_instance_groups": '["gpu"]',
    }
    config = read(flags)

    assert {
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_distribution_instance_groups": ["gpu"],
    } == config.framework_parameters
    assert {} == config.hyperparameters


def test_hosts_are_in_numeric_order(read):
    hosts = [f"algo-{number}" for number in (10, 2, 1)]
    config = read(
        resources={"current_host": "algo-2", "hosts": hosts, "network_interface_name": "eth0"}
    )

    assert ("algo-1", "algo-2", "algo-10") == config.resources.hosts
    assert "eth0" == config.resources.interface


def test_world_is_the_hosts_of_the_current_group(read):
    """With several instance groups only this host's group trains together."""
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.g5", "hosts": ["algo-3", "algo-2"]},
        {"instance_group_name": "cpu", "instance_type": "ml.c5", "hosts": ["algo-1"]},
    ]
    resources = {
        "current_host": "algo-3",
        "current_group_name": "gpu",
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": groups,
    }
    config = read(resources=resources)

    assert ("algo-2", "algo-3") == config.resources.hosts
    assert ("algo-1", "algo-2", "algo-3") == config.resources.all_hosts
    assert "gpu" == config.resources.group
    assert {"gpu": groups[0], "cpu": groups[1]} == config.resources.groups


def test_single_group_is_the_whole_job(read):
    """SageMaker always writes one group; its name need not be right."""
    group = {"instance_group_name": "homogeneousCluster", "hosts": ["a-1", "a-2"]}
    resources = {"current_host": "a-1", "hosts": ["a-1", "a-2"], "instance_groups": [group]}

    assert ("a-1", "a-2") == read(resources=resources).resources.hosts


def test_current_host_is_one_of_the_hosts(read):
    with pytest.raises(LaunchError) as caught:
        read(resources={"current_host": "algo-9", "hosts": ["algo-1"]})

    assert [("current_host", "unknown")] == fields_of(caught.value)
    assert str(caught.value) == (
        "current_host is 'algo-9': this name is not among the hosts that train together: algo-1."
        " Add this host to the hosts and to its instance group in resourceconfig.json."
    )


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_broken_file_is_named(tmp_path, text):
    folder = tmp_path / "input/config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(LaunchError) as caught:
        read_runtime_config({"SAGEMAKER_BASE_DIR": str(tmp_path)})

    assert ("resourceconfig.json",) == caught.value.about


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "region", "endpoint"),
    [
        ({"sagemaker_region": '"eu-west-1"'}, {"AWS_REGION": "x"}, "eu-west-1", None),
        ({}, {"AWS_REGION": "us-east-2", "S3_ENDPOINT_URL": "http://a"}, "us-east-2", "http://a"),
        ({}, {"AWS_ENDPOINT_URL_S3": "http://b", "S3_ENDPOINT_URL": "http://a"}, None, "http://b"),
    ],
)
def test_source_knows_region_and_endpoint(read, hyperparameters, environ, region, endpoint):
    source = read(hyperparameters, **environ).source

    assert (region, endpoint) == (source.region, source.endpoint)


def test_runner_may_choose_port_and_stop_seconds(read):
    config = read(SMDIST_MASTER_PORT="7801", SMDIST_STOP_SECONDS="2.5")

    assert (7801, 2.5) == (config.port, config.stop_seconds)


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_number_that_is_none_is_named(read, text):
    refused = fields_raised(lambda: read(SMDIST_MASTER_PORT=text))

    assert [("SMDIST_MASTER_PORT", "option")] == refused


def test_rank_needs_nothing():
    """Under a plain torchrun all is unset and the host is called by its hostname."""
    config = read_rank_config({})

    assert socket.gethostname() == config.host_label
    assert config.address is config.interface is config.secret_file is config.secret is None
    assert config.fusion_bytes is config.timeout_seconds is config.local_rank is None
    assert not config.is_in_world
    assert TuningConfig() == config.tuning


@pytest.mark.parametrize("missing", [None, "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_rank_is_in_a_world_that_can_meet(missing):
    """All four of torch's variables are set."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    config = read_rank_config({name: "1" for name in names if name != missing})

    assert (missing is None) == config.is_in_world


def test_rank_reads_what_the_launcher_set():
    config = read_rank_config(
        {
            "SMDIST_ADDRESS": "10.0.0.2",
            "SMDIST_INTERFACE": "eth0",
            "SMDIST_HOST_LABEL": "algo-2",
            "SMDIST_HOST_ID": "here",
            "SMDIST_FUSION_BYTES": "1048576",
            "SMDIST_TIMEOUT_SECONDS": "60",
            "SMDIST_START_TIMEOUT_SECONDS": "30",
            "MASTER_ADDR": "10.0.0.1",
            "SMDIST_SECRET_FILE": "/secret",
            "SMDIST_SECRET": "never shown",
            "SMDIST_GUARD_SOCKET": "/guards",
            "SMDIST_LANES": "4",
            "LOCAL_RANK": "3",
            "RANK": "7",
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_PORT": "7777",
            "TRAINING_JOB_NAME": "digits-1",
        }
    )

    assert ("10.0.0.2", "eth0", "algo-2") == (config.address, config.interface, config.host_label)
    assert "here" == config.host_id
    assert (1048576, 60) == (config.fusion_bytes, config.timeout_seconds)
    assert (30, "10.0.0.1") == (config.start_timeout_seconds, config.master_address)
    assert (7, 8, 3, 4) == (config.rank, config.size, config.local_rank, config.local_size)
    assert (7777, "digits-1") == (config.master_port, config.job_name)
    assert TuningConfig(lanes=4) == config.tuning
    assert Path("/secret") == config.secret_file
    assert ("never shown", True) == (config.secret, config.has_guard)
    assert "never shown" not in repr(config)


def test_rank_reads_how_the_model_is_split():
    """A document as on the wire; one without a model splits nothing."""
    model = ModelParallel(pipeline_parallel_degree=2, engine=DataParallel(lanes=4))
    name = "SMDIST_MODEL_PARALLEL"

    assert model == read_rank_config({name: render(model)}).model_parallel
    assert read_rank_config({name: render(DataParallel())}).model_parallel is None
    assert read_rank_config({name: ""}).model_parallel is None
    with pytest.raises(SkewError) as caught:
        read_rank_config({name: "x"})

    assert [(name, "not_json")] == fields_of(caught.value)
    assert [("SMDIST_MODEL_PARALEL", "unknown")] == fields_raised(
        lambda: read_rank_config({"SMDIST_MODEL_PARALEL": "x"})
    )


def test_rank_knows_which_variables_of_a_world_are_set():
    """RANK without the others is a slip, and no world of one."""
    assert () == read_rank_config({"RANK": ""}).world_variables
    assert ("RANK", "MASTER_PORT") == (
        read_rank_config({"MASTER_PORT": "1", "RANK": "0"}).world_variables
    )


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "a"}, 2),
        ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "b"}, 0),
        ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "a", "RANK": "0"}, 0),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "a"}, 0),
        ({"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "a"}, 0),
        ({"SM_HOSTS": '{"a": 1}', "SM_CURRENT_HOST": "a"}, 0),
    ],
)
def test_first_host_knows_of_others_that_are_no_ranks(environ, hosts):
    assert hosts == read_rank_config(environ).hosts_without_ranks


def test_guard_outside_a_world_has_no_rank():
    assert read_guard_config({}).rank is None
    assert 3 == read_guard_config({"RANK": "3"}).rank


def test_what_a_wait_blocks_is_read():
    read = [read_rank_config({"SMDIST_DEVICE_WAIT": text}).device_wait for text in ("", "host")]

    assert ["stream", "host"] == read


def test_what_a_wait_cannot_block_is_refused():
    refused = fields_raised(lambda: read_rank_config({"SMDIST_DEVICE_WAIT": "gpu"}))

    assert [("SMDIST_DEVICE_WAIT", "option")] == refused


def test_files_for_an_analysis_are_in_the_output_data_under_a_launcher():
    """Without one, the working directory has them, and there is no guard with a state to write."""
    alone = {"RANK": "3", "SAGEMAKER_BASE_DIR": "/base"}
    launched = {**alone, "SMDIST_GUARD_SOCKET": "/g", "SMDIST_START_TIMEOUT_SECONDS": "60"}
    state = Path("/base/output/data/smdist-debug/state-rank-3.json")

    assert (None, None) == (
        read_rank_config(alone).output_data,
        read_guard_config(alone).state_file,
    )
    assert Path("/base/output/data") == read_rank_config(launched).output_data
    assert state == read_guard_config(launched).state_file
    assert read_guard_config({**launched, "RANK": ""}).state_file is None
