# SPDX-License-Identifier: Apache-2.0
"""Read a cluster from JSON, the form in which another process describes it.

    {"num_hosts": 2, "ranks_per_host": 8,
     "inside": {"latency_seconds": 1e-5, "bytes_per_second": 3e11},
     "across": {"latency_seconds": 3e-5, "bytes_per_second": 6.25e9},
     "device": {"name": "NVIDIA A100", "memory_bytes": 38654705664,
                "flops_per_second": 3.12e14, "bytes_per_second": 1.555e12}}

Every key may be left out; names and defaults are those of `Cluster`, `Link` and `Device`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link

_PARTS: Final = {"inside": Link, "across": Link, "device": Device}
_TEXTS: Final = frozenset({"name"})
_COUNTS: Final = frozenset({"num_hosts", "ranks_per_host", "memory_bytes"})
_FROM_ZERO: Final = frozenset({"latency_seconds"})


def read_cluster(text: str) -> Cluster:
    """Read a cluster from JSON text.

    Raises:
        OptionError: The text is not JSON, or keys are unknown, or values have other types; all
            faults are reported at once.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"it is not JSON: {error.msg} at column {error.colno}"
        raise OptionError("--cluster", why, 'Pass JSON such as {"num_hosts": 2}') from error
    raise_all(_faults(document, Cluster, "--cluster"))
    parts = {name: kind(**document[name]) for name, kind in _PARTS.items() if name in document}
    return Cluster(**{**document, **parts})


def _faults(document: Any, kind: type[Any], where: str) -> Iterator[OptionError]:
    if not isinstance(document, dict):
        yield OptionError(f"{where} is {document!r}", "it must be an object with keys", "Write {…}")
        return
    known = [field.name for field in fields(kind)]
    for name, value in document.items():
        if name not in known:
            what = f"{where} has the key {name!r}"
            yield OptionError(what, "no such key exists", closest(name, known))
        elif name in _PARTS:
            yield from _faults(value, _PARTS[name], f"{where}, {name}")
        elif not _is_valid(name, value):
            why = f"it must be {_expected(name)}"
            yield OptionError(
                f"{where}, {name} is {value!r}", why, "Write such a value, or leave the key out"
            )


def _is_valid(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if value is None and name in {field.name for field in fields(Device)}:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name in _COUNTS:
        return isinstance(value, int) and value >= 1
    return value >= 0 if name in _FROM_ZERO else value > 0


def _expected(name: str) -> str:
    if name in _TEXTS:
        return "text"
    if name in _COUNTS:
        return "an integer of at least 1"
    return "a number of at least 0" if name in _FROM_ZERO else "a number above 0"
