# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine and its programs; no names of hosts or users."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

from smdist.modelparallel.core.calibration import MachineFacts

_PACKAGES: Final = ("sagemaker-dist", "sagemaker-dist-runtime")


def machine_facts(device: str) -> MachineFacts:
    """Return the processor, memory and device of this machine.

    Args:
        device: Kind of device that computes, "cpu" or "cuda".
    """
    processor = _processor()
    is_cuda = device == "cuda"
    return MachineFacts(
        processor=processor,
        num_cores=num_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        device=device,
        device_name=torch.cuda.get_device_name() if is_cuda else processor,
        num_devices=torch.cuda.device_count() if is_cuda else 1,
        num_threads=torch.get_num_threads(),
    )


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, CUDA if there is a GPU, and this project's packages."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        found["cuda"] = str(torch.version.cuda)
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Return the model of the processor, or its architecture if Linux does not name it."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()
