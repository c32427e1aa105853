# SPDX-License-Identifier: Apache-2.0
"""Files of a job's ranks with their operations, as the engine writes them."""

import json
from pathlib import Path


def operation(number, sequence=None, *, group=0, ended=True, **changes):
    """Return one all-reduce, which began at second 100 + `number`."""
    own = {
        "number": number,
        "group": group,
        "kind": "all_reduce",
        "sequence": number - 1 if sequence is None else sequence,
        "part": 0,
        "dtype": "float32",
        "bytes": 400,
        "op": "sum",
        "submitted": 100.0 + number,
        "started": 100.5 + number if ended else None,
        "ended": 101.0 + number if ended else None,
        "state": "ended" if ended else "submitted",
    }
    return {name: value for name, value in (own | changes).items() if value is not ...}


def history(rank, operations, *, size=2, groups=None, **changes):
    """Return the content of operations-rank-N.json as data."""
    return {
        "version": 1,
        "rank": rank,
        "size": size,
        "name": f"rank {rank} on algo-{rank + 1}",
        "reason": "request",
        "written_at": 200.0,
        "fault": None,
        "groups": groups or {"0": list(range(size))},
        "operations": operations,
    } | changes


def write_histories(folder, *histories):
    """Write the files into a folder, and return it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for each in histories:
        path = Path(folder, f"operations-rank-{each['rank']}.json")
        path.write_text(json.dumps(each), encoding="utf-8")
    return Path(folder)
