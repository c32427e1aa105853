# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine, by the names that NVIDIA's driver gives them."""

from __future__ import annotations

import re
import subprocess
from typing import Final

_UUID: Final = re.compile(r"\(UUID: (GPU-[^)]+)\)")


def list_gpus() -> list[str]:
    """Return the UUID of each GPU in the driver's order; none without a driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],  # noqa: S607  # the driver's place differs
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return _UUID.findall(listed.stdout)
