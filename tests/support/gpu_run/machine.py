# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine, for the report and for the choice of what can run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sagemaker_dist.errors import SetupError

_PROBE = """
import json, torch
has_gpu = torch.cuda.is_available()
gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
nccl = torch.cuda.nccl.version() if has_gpu and torch.distributed.is_nccl_available() else ()
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, nccl)) or None,
    "gpus": [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, sm_{gpu.major}{gpu.minor}"
             for gpu in gpus if has_gpu],
}))
"""
_TRIED_NAMESPACE = "sdtried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the report says of the machine.

    Attributes:
        gpus: Name, memory and architecture of each GPU.
        nccl: Version of the NCCL in torch; None: torch has none, or there is no GPU.
        no_namespaces: Why hosts cannot be emulated with network namespaces; "": they can be.
    """

    processor: str
    cores: int
    memory_gib: int
    kernel: str
    python: str
    gpus: tuple[str, ...]
    driver: str | None
    torch: str
    cuda: str | None
    nccl: str | None
    no_namespaces: str


def has_gpu() -> bool:
    """Return whether the machine has a GPU of NVIDIA's with its driver, without torch's help."""
    devices = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg")]
    return bool(devices) or _nvidia_smi("--list-gpus") is not None


def found(python: Path, device: str) -> Machine:
    """Return the machine as the interpreter's torch sees it.

    Raises:
        SetupError: There is a GPU, and torch cannot use it.
    """
    probed = subprocess.run(
        [python, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=120
    )
    if probed.returncode != 0:
        raise SetupError(
            f"torch of {python} cannot be asked for GPUs",
            probed.stderr.strip().splitlines()[-1]
            if probed.stderr.strip()
            else "it printed nothing",
            "Run the same interpreter with -c 'import torch; print(torch.cuda.is_available())'",
        )
    facts = json.loads(probed.stdout.splitlines()[-1])
    if device == "cuda" and not facts["gpus"]:
        raise SetupError(
            f"torch {facts['torch']} sees no GPU",
            f"the machine has one, and torch was built for CUDA {facts['cuda']}; the driver is"
            f" {_driver()}",
            "Name an interpreter whose torch was built for the driver's CUDA by PYTHON=PATH, or a"
            " folder of wheels by WHEELS=FOLDER",
        )
    facts["gpus"] = tuple(facts["gpus"])
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        driver=_driver(),
        no_namespaces=_fault_of_namespaces(),
        **facts,
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _driver() -> str | None:
    answer = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return answer.splitlines()[0] if answer else None


def _nvidia_smi(*arguments: str) -> str | None:
    """Return the answer of NVIDIA's tool; None if it is missing, fails or names nothing."""
    tool = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _fault_of_namespaces() -> str:
    """Return why this process cannot make network namespaces with links; "": it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip, tc) is not installed"
    made = _ip("netns", "add", _TRIED_NAMESPACE)
    linked = made and _ip("link", "add", "sdtried0", "type", "veth", "peer", "name", "sdtried1")
    bridged = linked and _ip("link", "add", "sdtriedb", "type", "bridge")
    for name in ("sdtried0", "sdtriedb"):
        _ip("link", "del", name)
    _ip("netns", "del", _TRIED_NAMESPACE)
    return "" if bridged else "the kernel refuses namespaces, veth or bridges here"


def _ip(*arguments: str) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, check=False, timeout=30)
    return done.returncode == 0
