# SPDX-License-Identifier: Apache-2.0
"""This machine's GPUs: UUIDs, by which Docker assigns them to containers, and what they run."""

from __future__ import annotations

import re
import subprocess
from typing import Final

_UUID: Final = re.compile(r"\(UUID: (GPU-[^)]+)\)")
_CAPABILITY: Final = re.compile(r"^\d+\.\d+$", re.MULTILINE)


def list_gpus() -> list[str]:
    """Return the UUID of each NVIDIA GPU, in the driver's order; an empty list without a driver."""
    return _UUID.findall(_output_of("--list-gpus"))


def compute_capabilities() -> list[str]:
    """Return the compute capability of each NVIDIA GPU, such as "8.0", in the driver's order.

    The list is empty if the driver does not report them.
    """
    return _CAPABILITY.findall(_output_of("--query-gpu=compute_cap", "--format=csv,noheader"))


def _output_of(*arguments: str) -> str:
    try:
        listed = subprocess.run(
            ["nvidia-smi", *arguments],  # noqa: S607  # its directory differs between machines
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return listed.stdout
