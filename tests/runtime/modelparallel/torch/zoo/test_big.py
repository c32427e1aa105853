# SPDX-License-Identifier: Apache-2.0
"""Models that fit on no machine are planned on a small one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zoo

SUPPORT = Path(zoo.__file__).parents[1]
SECONDS, GIB = 30, 2  # of a busy processor; docs/models.md has those of a quiet one
PLANNING = """
import json, resource, time
import torch
torch.set_num_threads(1)
import zoo
import smdist.modelparallel.torch as smp

begin = time.process_time()
with torch.device("meta"):
    specimen = zoo.large({name!r}, rows={rows})
specimen.model.bfloat16()
cluster = smp.Cluster(
    num_hosts=16,
    ranks_per_host=8,
    inside=smp.Link(latency_seconds=5e-6, bytes_per_second=200e9),
    across=smp.Link(latency_seconds=20e-6, bytes_per_second=40e9),
    device=smp.Device(
        name="A100", memory_bytes=80 << 30, flops_per_second=312e12, bytes_per_second=1.5e12
    ),
)
plan = smp.plan(specimen.model, specimen.batch, cluster, microbatches={rows})
seconds = time.process_time() - begin
print(json.dumps({{
    "seconds": seconds,
    "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "stages": [len(stage) for stage in plan.stages],
}}))
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "layers"), [("llama70b", 80), ("gpt3_175b", 96)])
def test_big_models_are_planned_in_seconds(name, layers):
    """Captured, estimated and planned for 128 GPUs in seconds of one core and 2 GiB."""
    done = subprocess.run(
        [sys.executable, "-c", PLANNING.format(name=name, rows=16)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["seconds"] < SECONDS
    assert found["kib"] / 2**20 < GIB
    assert len(found["stages"]) > 1
    assert sum(found["stages"]) >= layers
