# SPDX-License-Identifier: Apache-2.0
"""Row of a plain torchrun, which restarts ranks itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.faults.fault_row import Seen

_SECONDS = 180.0
# One write for each line: lines of two ranks do not mix.
_SCRIPT = """
import os, signal, time
import torch, torch.distributed as dist
import smdist.dataparallel.torch
torch.set_num_threads(1)
dist.init_process_group("smdist")
restarts, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
for step in range(10):
    dist.all_reduce(numbers := torch.ones(1000))
if rank == 1 and restarts == 0:
    os.write(1, f"fault {time.monotonic()}\\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(numbers := torch.ones(1000))
os.write(1, f"again {time.monotonic()} {restarts} {numbers[0].item()}\\n".encode())
dist.destroy_process_group()
"""


def torchrun_restarts(framework: str) -> Seen:
    """Kill rank 1 of 2 under `torchrun --max-restarts 2`; the time is until both sum again."""
    with tempfile.TemporaryDirectory(prefix="flt-") as folder:
        script = Path(folder) / "script.py"
        script.write_text(_SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        options = ["--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1", str(script)]
        environ = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        began = time.monotonic()
        code, output, errors = _run([*command, *options], environ)
        words = [line.split() for line in output.splitlines()]
        fault = next((float(each[1]) for each in words if each[:1] == ["fault"]), began)
        again = [float(each[1]) for each in words if each[:1] == ["again"]]
        left = [f"file {each.name}" for each in Path(folder).glob("smdist*")]
    return Seen(
        seconds=max(again) - fault if len(again) == 2 else None,
        codes=[code],
        left=left,
        notes=[f"{framework}: {len(again)} ranks sum again"],
        stacks=errors[-4000:] if code else "",
    )


def _run(command: list[str], environ: dict[str, str]) -> tuple[int, str, str]:
    """Run torchrun, and kill it with its ranks, which have sessions of their own, if it hangs."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        output, errors = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.kill()
        process.communicate()
        output, errors = "", f"no end within {_SECONDS:g} s"
    return process.returncode, output, errors
