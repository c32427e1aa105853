# SPDX-License-Identifier: Apache-2.0
"""Reader of a cluster in JSON, from the argument `--cluster`.

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
    """Return the cluster that a JSON text describes.

    Raises:
        OptionError: The text is not JSON, keys are unknown, or values are wrong; all wrong keys and
            values are reported at once.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"column {error.colno}: {error.msg}"
        hint = 'Pass JSON such as {"num_hosts": 2}'
        what = "--cluster is not JSON"
        raise OptionError(what, why, hint, about="cluster", kind="not_json") from error
    raise_all(_faults(document, Cluster, ("cluster",)))
    parts = {name: kind(**document[name]) for name, kind in _PARTS.items() if name in document}
    return Cluster(**{**document, **parts})


def _faults(document: Any, kind: type[Any], path: tuple[str, ...]) -> Iterator[OptionError]:
    """Yield an error for each wrong key or value of a JSON object.

    Args:
        document: Value that should be the object.
        kind: Dataclass whose fields are the valid keys.
        path: Keys of the outer objects, from the outermost one to this object.
    """
    where = ", ".join(["--cluster", *path[1:]])
    if not isinstance(document, dict):
        what, hint = f"{where} is {document!r}", 'Write an object such as {"name": "cpu"}'
        why = "it must be a JSON object with keys"
        yield OptionError(what, why, hint, about=path, kind="type")
        return
    known = [field.name for field in fields(kind)]
    for name, value in document.items():
        about = (*path, name)
        if name not in known:
            what, why = f"{where} has the key {name!r}", "no such key exists"
            yield OptionError(what, why, closest(name, known), about=about, kind="unknown")
        elif name in _PARTS:
            yield from _faults(value, _PARTS[name], about)
        elif not _is_valid(name, value):
            what, why = f"{where}, {name} is {value!r}", f"it must be {_expected(name)}"
            hint = f"Write {_expected(name)}, or leave the key out"
            yield OptionError(what, why, hint, about=about)


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
