# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts of two ranks each, under the real torchrun."""

import json
import os
import signal
import socket
import time

import pytest
from ports import free_port

from sagemaker_dist.contract import DataParallel

HOSTS = ["127.0.0.1", "127.0.0.2"]
TRAIN = """
import json, os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SM_CURRENT_HOST", "SM_HOSTS", "SM_MASTER_ADDR",
         "SMDIST_ADDRESS", "SMDIST_HOST_LABEL", "SMDIST_INTERFACE", "SMDIST_FUSION_BYTES",
         "OMP_NUM_THREADS")
seen = {name: os.environ[name] for name in names}
seen |= {"argv": sys.argv[1:], "sum": one.item(), "pid": os.getpid(), "cwd": os.getcwd()}
path = os.path.join(os.environ["SM_MODEL_DIR"], os.environ["RANK"] + ".json")
open(path + "~", "w").write(json.dumps(seen))
os.rename(path + "~", path)
if "--wait" in sys.argv:
    time.sleep(60)
dist.destroy_process_group()
"""
GROUPED = """
import json, os
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SM_DISTRIBUTION_INSTANCE_GROUPS",
         "SM_CURRENT_INSTANCE_GROUP_HOSTS", "SM_FRAMEWORK_PARAMS")
seen = {name: os.environ.get(name) for name in names}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w") as file:
    json.dump(seen, file)
"""

OPEN_MPI = """
import json, os
names = ("COMM_WORLD_SIZE", "COMM_WORLD_LOCAL_RANK", "COMM_WORLD_LOCAL_SIZE",
         "COMM_WORLD_NODE_RANK", "UNIVERSE_SIZE")
seen = [*(os.environ["OMPI_" + name] for name in names), os.environ["GREETING"]]
rank = os.environ["OMPI_COMM_WORLD_RANK"]
with open(os.path.join(os.environ["SM_MODEL_DIR"], rank + ".json"), "w") as file:
    json.dump(seen, file)
"""


@pytest.fixture
def port():
    return free_port("")


@pytest.fixture
def taken():
    """A port where somebody listens already."""
    with socket.create_server(("", 0)) as other:
        yield other.getsockname()[1]


@pytest.fixture
def start(stage, port):
    """Start one launcher per host."""

    def launch(**hyperparameters):
        options = DataParallel(processes_per_host=2, start_timeout_seconds=60)
        return [
            stage.train(
                stage.base(
                    TRAIN, name=f"host{number}", host=host, hosts=HOSTS, options=options,
                    **hyperparameters,
                ),
                SMDIST_MASTER_PORT=str(port),
            )
            for number, host in enumerate(HOSTS, start=1)
        ]  # fmt: skip

    return launch


def seen(runs):
    """What the ranks that started wrote, by rank."""
    files = [path for run in runs for path in (run.base / "model").glob("*.json")]
    return {int(path.stem): json.loads(path.read_text()) for path in files}


def test_four_ranks_on_two_hosts(start):
    """Ranks, addresses, arguments and environment are right; torchrun itself is silent."""
    text = "a$$b ${local_rank} it's ü"
    runs = start(text=text)

    assert [0, 0] == [run.wait(60) for run in runs]
    ranks = seen(runs)

    assert [0, 1, 2, 3] == sorted(ranks)
    for rank, facts in ranks.items():
        host = HOSTS[rank // 2]
        assert str(rank % 2) == facts["LOCAL_RANK"]
        assert ("4", 4.0) == (facts["WORLD_SIZE"], facts["sum"])
        assert host == facts["SM_CURRENT_HOST"] == facts["SMDIST_ADDRESS"]
        assert HOSTS[0] == facts["SM_MASTER_ADDR"]
        assert HOSTS == json.loads(facts["SM_HOSTS"])
        assert f"algo-{rank // 2 + 1}" == facts["SMDIST_HOST_LABEL"]
        assert "lo" == facts["SMDIST_INTERFACE"]
        assert ["--text", text] == facts["argv"]
        assert str(runs[rank // 2].base / "code") == facts["cwd"]
    for number, run in enumerate(runs, start=1):
        assert run.failure() is None
        assert all(line.startswith(f"[algo-{number}") for line in run.said().splitlines())


@pytest.mark.slow
def test_killed_rank_and_stopped_host(start, until):
    """kill -9 of one rank ends its host in seconds and is its reason; SIGTERM ends the other."""
    runs = start(wait="1")
    until(lambda: len(seen(runs)) == 4, 60)
    os.kill(seen(runs)[3]["pid"], signal.SIGKILL)
    killed = time.monotonic()

    assert 137 == runs[1].wait(20)
    assert time.monotonic() - killed < 7.0
    assert runs[1].failure().startswith("algo-2 rank 3 was killed by SIGKILL: ")

    runs[0].process.terminate()
    stopped = time.monotonic()

    assert 143 == runs[0].wait(20)
    assert time.monotonic() - stopped < 7.0
    assert runs[0].failure() is None


@pytest.fixture
def start_flagged(stage, port):
    """Start one launcher per host, with the flags of SageMaker's SDK; no host has a GPU."""

    def launch(hosts, groups=None, ports=None, script=GROUPED, **flags):
        ports = ports or [port] * len(hosts)
        return [
            stage.train(
                stage.base(
                    script, name=f"host{number}", host=host, hosts=hosts, groups=groups, **flags
                ),
                SMDIST_MASTER_PORT=str(own),
                CUDA_VISIBLE_DEVICES="",
            )
            for number, (host, own) in enumerate(zip(hosts, ports, strict=True), start=1)
        ]

    return launch


def facts(run):
    """What the one process of a host wrote."""
    return json.loads((run.base / "model/seen.json").read_text())


def test_flag_of_sagemakers_sdk_starts_ranks(start_flagged):
    """One rank per host without GPUs; the flag stays where scripts look for it."""
    runs = start_flagged(HOSTS, sagemaker_torch_distributed_enabled=True)

    assert [0, 0] == [run.wait(60) for run in runs], runs[0].said()
    for rank, run in enumerate(runs):
        told = facts(run)
        assert (str(rank), "2") == (told["RANK"], told["WORLD_SIZE"])
        assert HOSTS[0] == told["MASTER_ADDR"]
        assert {"sagemaker_torch_distributed_enabled": True} == json.loads(
            told["SM_FRAMEWORK_PARAMS"]
        )
        assert f"] starts rank {rank} of 2 on algo-1, algo-2: train.py" in run.said()


def test_a_request_for_mpirun_starts_ranks_with_open_mpis_variables(start_flagged):
    """Two ranks per host, with the variable of -x; the script finds its rank as under mpirun."""
    runs = start_flagged(
        HOSTS,
        script=OPEN_MPI,
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
        sagemaker_mpi_custom_mpi_options="-x GREETING=hello -x API_TOKEN=abc --verbose",
    )

    assert [0, 0] == [run.wait(60) for run in runs], runs[0].said()
    told = seen(runs)

    assert {
        rank: ["4", str(rank % 2), "2", str(rank % 2), "4", "hello"] for rank in range(4)
    } == told
    assert "the ranks' command is GREETING=hello 'API_TOKEN=***'" in runs[0].said()
    assert "abc" not in runs[0].said()


def test_ranks_start_in_the_named_group_and_plain_processes_elsewhere(start_flagged, port, taken):
    """The other group's host does not need a port where ranks would meet."""
    groups = {"workers": HOSTS, "feeders": ["127.0.0.3"]}
    runs = start_flagged(
        [*HOSTS, "127.0.0.3"],
        groups,
        ports=[port, port, taken],
        sagemaker_distributed_dataparallel_enabled=True,
        sagemaker_distributed_dataparallel_custom_mpi_options="",
        sagemaker_distribution_instance_groups=["workers"],
    )

    assert [0, 0, 0] == [run.wait(60) for run in runs], runs[2].said()
    told = [facts(run) for run in runs]

    assert [("0", "2"), ("1", "2"), (None, None)] == [
        (each["RANK"], each["WORLD_SIZE"]) for each in told
    ]
    assert ['["workers"]'] * 3 == [each["SM_DISTRIBUTION_INSTANCE_GROUPS"] for each in told]
    assert '["127.0.0.3"]' == told[2]["SM_CURRENT_INSTANCE_GROUP_HOSTS"]
    assert "] starts rank 1 of 2 on algo-1, algo-2: train.py" in runs[1].said()
    shown = "] starts train.py as a plain process; ranks start only in the groups workers"

    assert shown in runs[2].said()


def test_weights_are_for_hosts_with_ranks(stage, port):
    """A host of another group does not count them; one of the named group does."""
    groups = {"workers": ["127.0.0.1"], "feeders": ["127.0.0.2"]}
    hosts = [host for each in groups.values() for host in each]
    runs = [
        stage.train(
            stage.base(
                GROUPED,
                name=f"host{number}",
                host=host,
                hosts=hosts,
                groups=groups,
                options=DataParallel(shard_weights=(1, 2)),
                sagemaker_distribution_instance_groups=["workers"],
            ),
            SMDIST_MASTER_PORT=str(port),
        )
        for number, host in enumerate(hosts)
    ]

    assert [1, 0] == [run.wait(60) for run in runs]
    assert "shard_weights" == runs[0].fields()["about"]
    assert facts(runs[1])["RANK"] is None


@pytest.mark.slow
def test_without_named_groups_each_is_a_world(start_flagged, port):
    """They share this machine here, so each needs a port of its own."""
    other = free_port("")
    groups = {"a": HOSTS, "b": ["127.0.0.3"]}
    runs = start_flagged(
        [*HOSTS, "127.0.0.3"],
        groups,
        ports=[port, port, other],
        sagemaker_pytorch_ddp_enabled=True,
    )

    assert [0, 0, 0] == [run.wait(60) for run in runs]
    told = [facts(run) for run in runs]

    assert [("0", "2"), ("1", "2"), ("0", "1")] == [
        (each["RANK"], each["WORLD_SIZE"]) for each in told
    ]
    assert ['["a"]', '["a"]', '["b"]'] == [each["SM_DISTRIBUTION_INSTANCE_GROUPS"] for each in told]
