# SPDX-License-Identifier: Apache-2.0
"""UUIDs of this machine's GPUs, by which Docker assigns them to containers."""

from __future__ import annotations

import re
import subprocess
from typing import Final

_UUID: Final = re.compile(r"\(UUID: (GPU-[^)]+)\)")


def list_gpus() -> list[str]:
    """Return the UUID of each NVIDIA GPU, in the driver's order; an empty list without a driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],  # noqa: S607  # its directory differs between machines
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return _UUID.findall(listed.stdout)
