# SPDX-License-Identifier: Apache-2.0
"""Check for a job whose hosts start no ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping


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
