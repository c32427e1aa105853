# SPDX-License-Identifier: Apache-2.0
"""Counts of the CPUs and GPUs of this host that this container may use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """Numbers of CPUs and GPUs that this container may use."""

    num_cpus: int = 1
    num_gpus: int = 0


def inspect_machine(environ: Mapping[str, str]) -> HostResources:
    """Count the CPUs of this process's cpuset, and the GPUs that CUDA_VISIBLE_DEVICES allows."""
    return HostResources(num_cpus=len(os.sched_getaffinity(0)), num_gpus=_count_gpus(environ))


def _count_gpus(environ: Mapping[str, str]) -> int:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],  # noqa: S607  # the driver's place differs per image
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    present = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return present if visible is None else min(present, _count_visible(visible))


def _count_visible(devices: str) -> int:
    """Count the devices in CUDA_VISIBLE_DEVICES before the first empty one or -1, as CUDA does."""
    count = 0
    for device in devices.split(","):
        if device.strip() in {"", "-1"}:
            break
        count += 1
    return count
