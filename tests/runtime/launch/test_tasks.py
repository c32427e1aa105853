# SPDX-License-Identifier: Apache-2.0
"""Environments and ports of TensorFlow's processes are computed from the configuration alone."""

import json
import sys
from pathlib import Path

import pytest

from sagemaker_dist.contract import DataParallel, World
from smdist.code_source import Source
from smdist.config import RuntimeConfig
from smdist.container_files import Resources
from smdist.launch.tf_tasks import Tasks, tasks_of

HOSTS = ("algo-1", "algo-2", "algo-10")
ADDRESSES = {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2", "algo-10": "10.0.0.3"}
SCRIPT = ["train.py", "--lr", "1"]
GUARD = (sys.executable, "-m", "smdist.launch.rank_guard")


@pytest.fixture
def tasks():
    """The tasks of one of three hosts."""

    def of(host, strategy=None, processes=1):
        config = RuntimeConfig(
            base=Path("/opt/ml"),
            resources=Resources(current_host=host, hosts=HOSTS, all_hosts=HOSTS),
            source=Source(program="train.py"),
            options=DataParallel(start_timeout_seconds=77),
            strategy=strategy,
        )
        world = World(hosts=HOSTS, processes_per_host=processes)
        return tasks_of(config, world, ADDRESSES, SCRIPT)

    return of


def config_of(task):
    return json.loads(task.environ["TF_CONFIG"])


def test_ranks_of_a_host(tasks):
    """The variables that torchrun would set, and no TF_CONFIG."""
    first, second = tasks("algo-2", processes=2).each

    assert (*GUARD, *SCRIPT) == first.command == second.command
    assert {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "7777",
    } == second.environ
    assert "2" == first.environ["RANK"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_worker_per_host_for_the_mirrored_strategy(tasks, index):
    """All hosts have the same cluster, and listen at its addresses."""
    planned = tasks(HOSTS[index], "multi_worker_mirrored_strategy")
    (task,) = planned.each

    assert {
        "cluster": {"worker": ["10.0.0.1:7778", "10.0.0.2:7779", "10.0.0.3:7780"]},
        "task": {"type": "worker", "index": index},
    } == config_of(task)
    assert str(index) == task.environ["RANK"]
    assert (7778 + index,) == planned.ports


@pytest.mark.parametrize("index", [0, 1, 2])
def test_servers_on_every_host_and_a_chief_on_the_first(tasks, index):
    """No two processes of the job share a port: emulated hosts are one machine."""
    planned = tasks(HOSTS[index], "parameter_server")
    kinds = [config_of(task)["task"] for task in planned.each]
    cluster = config_of(planned.each[0])["cluster"]
    places = [place for each in cluster.values() for place in each]
    own = [place for place in places if place.startswith(f"10.0.0.{index + 1}:")]

    assert {"chief": ["10.0.0.1:7778"], "worker": 3, "ps": 3} == {
        **cluster,
        "worker": len(cluster["worker"]),
        "ps": len(cluster["ps"]),
    }
    assert len(places) == len({place.partition(":")[2] for place in places})
    assert sorted(f"10.0.0.{index + 1}:{port}" for port in planned.ports) == sorted(own)
    assert ["ps", "worker", "chief"][: 3 if index == 0 else 2] == [k["type"] for k in kinds]
    assert [index, index, 0][: len(kinds)] == [kind["index"] for kind in kinds]


def test_servers_wait_for_the_first_hosts_bell(tasks):
    """Only the first host runs the script."""
    first, second = (tasks(host, "parameter_server") for host in HOSTS[:2])
    bell = ("10.0.0.1:7777", "77")

    assert (7777, 6) == (first.result_port, first.num_servers)
    assert second.result_port is None
    assert (*GUARD, *SCRIPT) == first.each[2].command
    assert [True, True] == [task.is_server for task in second.each]
    assert [("algo-2 ps 1", *bell), ("algo-2 worker 1", *bell)] == [
        task.command[-3:] for task in second.each
    ]
    assert ["", None, ""] == [task.environ.get("CUDA_VISIBLE_DEVICES") for task in first.each]


@pytest.mark.parametrize("strategy", [None, "parameter_server", "multi_worker_mirrored_strategy"])
def test_the_starter_reads_what_was_written(tasks, tmp_path, strategy):
    planned = tasks("algo-1", strategy)

    assert planned == Tasks.read(planned.write(tmp_path))
