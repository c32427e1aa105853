# SPDX-License-Identifier: Apache-2.0
"""smp.init where nobody started torch.distributed: a plain process, and ranks of a launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ports import free_port

import smdist

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SECONDS = 60
PLAIN = """
import json, torch, torch.distributed as dist
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.smp import comm
from smdist.modelparallel.torch.smp import rank_functions as smp

first = session.init({"partitions": 1, "microbatches": 4})
facts = {
    "ours": first.is_ours,
    "backend": dist.get_backend(),
    "ranks": [smp.rank(), smp.local_rank(), smp.pp_rank(), smp.dp_rank()],
    "sizes": [smp.size(), smp.local_size(), smp.pp_size(), smp.mp_size()],
    "gathered": comm.allgather("x"),
}
tensor = torch.ones(3)
dist.all_reduce(tensor)
comm.barrier()
facts["sum"] = tensor.tolist()
session.end()
facts["ended"] = [session.is_initialized(), dist.is_initialized()]
try:
    session.init({"partitions": 2})
except ValueError as error:
    facts["refused"] = [error.as_dict()["about"], dist.is_initialized()]
facts["again"] = session.init().is_decided
session.end()
print(json.dumps(facts))
"""
RANK = """
import json, torch.distributed as dist
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.smp import comm
from smdist.modelparallel.torch.smp import rank_functions as smp

session.init({"partitions": 2})
facts = [smp.pp_rank(), smp.local_rank(), dist.get_backend(), comm.allgather("x")]
session.end()
print(json.dumps(facts + [dist.is_initialized()]))
"""


def _start(code, **launcher):
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    environ |= {"PYTHONPATH": str(Path(smdist.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environ, **launcher},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process):
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()

    assert 0 == process.returncode, err
    return json.loads(out.splitlines()[-1])


def test_a_plain_process_is_a_world_of_one_that_works():
    """No launcher, no variables: ranks, groups, messages, the end, and a fault in between."""
    facts = _answer(_start(PLAIN))

    assert (True, "smdist") == (facts["ours"], facts["backend"])
    assert ([0] * 4, [1] * 4, ["x"]) == (facts["ranks"], facts["sizes"], facts["gathered"])
    assert [1.0] * 3 == facts["sum"]
    assert [False, False] == facts["ended"]
    assert ["pipeline_parallel_degree", False] == facts["refused"]
    assert not facts["again"]


def test_ranks_of_a_launcher_meet_by_themselves():
    """Two processes with torchrun's variables: smp.init starts torch.distributed on both."""
    port = str(free_port())
    ranks = [
        _start(
            RANK,
            RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]

    assert [[rank, rank, "smdist", ["x", "x"], False] for rank in range(2)] == [
        _answer(process) for process in ranks
    ]
