# SPDX-License-Identifier: Apache-2.0
"""Checks of environment variables that set no option of `DataParallel`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from sagemaker_dist.errors import OptionError

DEVICE_WAITS: Final = ("stream", "host")  # the first is the default


def device_wait_faults(environ: Mapping[str, str]) -> Iterator[OptionError]:
    """Yield a fault if SMDIST_DEVICE_WAIT is none of DEVICE_WAITS."""
    text = environ.get("SMDIST_DEVICE_WAIT")
    if text and text not in DEVICE_WAITS:
        yield OptionError(
            f"the environment variable SMDIST_DEVICE_WAIT is {text!r}",
            f"it must be one of {', '.join(DEVICE_WAITS)}",
            "Set it to host if wait() shall block the host, or unset it",
            about="SMDIST_DEVICE_WAIT",
        )


def hosts_without_ranks(environ: Mapping[str, str]) -> int:
    """Return the number of hosts if this is the first of several hosts and RANK is not set; else 0.

    Without the variable RANK, each host runs the script as one plain process.
    """
    if environ.get("RANK"):
        return 0
    try:
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return 0
    is_first = isinstance(hosts, list) and hosts[:1] == [environ.get("SM_CURRENT_HOST")]
    return len(hosts) if is_first and len(hosts) > 1 else 0
