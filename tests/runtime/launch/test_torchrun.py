# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts of two ranks each, under the real torchrun."""

import json
import os
import signal
import socket
import time

import pytest

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


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


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
