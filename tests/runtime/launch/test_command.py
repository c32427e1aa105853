# SPDX-License-Identifier: Apache-2.0
"""The command line of a host is computed, not found out."""

import shlex
import sys
from pathlib import Path

import pytest
from torch.distributed.run import config_from_args, parse_args

from sagemaker_dist.contract import DataParallel, World
from smdist.code_source import Source
from smdist.config import RuntimeConfig
from smdist.container_files import Resources
from smdist.launch.launch_command import plain_command, torchrun_command

HOSTS = ("algo-1", "algo-2")
ADDRESSES = {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2"}


def command(*arguments):
    config = RuntimeConfig(
        base=Path("/opt/ml"),
        resources=Resources(current_host="algo-2", hosts=HOSTS, all_hosts=HOSTS),
        source=Source(program="train.py"),
        options=DataParallel(start_timeout_seconds=77),
    )
    world = World(hosts=HOSTS, processes_per_host=8)
    script = ["/opt/ml/code/train.py", *arguments]
    return torchrun_command(config, world, ADDRESSES, script, Path("/run/logs"))


def test_plain_command_is_one_guard():
    assert [
        sys.executable,
        "-m",
        "smdist.launch.rank_guard",
        "train.py",
        "-x",
        "1",
    ] == plain_command(["train.py", "-x", "1"])


def test_torchrun_command():
    """The whole line for the second of two hosts."""
    expected = shlex.split(
        "-m smdist.dataparallel.torchrun --nnodes 2 --nproc-per-node 8"
        " --rdzv-id attempt-0 --rdzv-backend smdist --rdzv-endpoint 10.0.0.1:7777"
        " --rdzv-conf 'rank=1,timeout=77,hosts=algo-1|algo-2,ranks_per_host=8,listen=10.0.0.1'"
        " --local-addr 10.0.0.2"
        " --max-restarts 0 --monitor-interval 0.1"
        " --log-dir /run/logs --shutdown-timeout 110 --no-python --"
    )
    guard = [sys.executable, "-m", "smdist.launch.rank_guard", "/opt/ml/code/train.py", "--lr", "1"]

    assert [sys.executable, *expected, *guard] == command("--lr", "1")


@pytest.mark.parametrize("name", ["--nnodes", "--n", "--log", "--no"])
def test_torchrun_understands_it(monkeypatch, name):
    """torchrun's own parser reads every flag as it is meant, and none of the script's."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun would set it
    config, entrypoint, arguments = config_from_args(parse_args(command(name, "9")[3:]))

    assert (2, 8) == (config.max_nodes, config.nproc_per_node)
    assert "77" == config.rdzv_configs["timeout"]
    assert 110 == config.shutdown_timeout
    assert sys.executable == entrypoint
    assert [name, "9"] == arguments[-2:]


def test_dollars_are_doubled_for_torchrun():
    assert "a$$$$b$${local_rank}" == command("a$$b${local_rank}")[-1]
