# SPDX-License-Identifier: Apache-2.0
"""Calibration file: speeds that were measured on a machine, for predictions of layouts.

    {"version": 1, "device": "NVIDIA A100", "date": "2026-11-27",
     "products": [[512, 8.1e13], [4096, 2.5e14]],
     "memory_bytes_per_second": 1.3e12,
     "inside": {"latency_seconds": 1e-5, "points": [[1e6, 9e10], [1e8, 2.3e11]]},
     "across": {"latency_seconds": 3e-5, "points": [[1e6, 2e9], [1e8, 5.1e9]]},
     "host_bytes_per_second": 2.4e10, "attention_flops_per_second": 1.7e14, "spread": 0.1}

`products` are pairs of the smallest dimension of a product of matrices and its FLOP/s in the dtype
of computation. `points` of a link are pairs of the bytes of a message and its bytes per second: for
`across`, those of one rank while all ranks of its host send. `spread` is the relative uncertainty.
Version, device, date and products are required; a speed that is left out is taken from the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout.machine_speed import Curve, Machine
from smdist.modelparallel.core.quantities import shown

_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 20  # a calibration has some dozens of numbers
_REQUIRED: Final = ("version", "device", "date", "products")
_RATES: Final = (
    "memory_bytes_per_second",
    "host_bytes_per_second",
    "attention_flops_per_second",
)
_LINKS: Final = ("inside", "across")
_KEYS: Final = (*_REQUIRED, *_RATES, *_LINKS, "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Speeds that were measured on a machine, as in its file.

    Attributes:
        document: Content of the file, checked.
    """

    document: Mapping[str, Any]

    def machine(self, cluster: Cluster) -> Machine:
        """Return a machine with this cluster's hosts and memory, and with the measured speeds.

        Args:
            cluster: Hosts, ranks, memory, and the speeds that were not measured.
        """
        source = f"measured on {self.document['device']}, {self.document['date']}"
        best = max(speed for _, speed in self.document["products"])
        device = replace(cluster.device, flops_per_second=best)
        given: dict[str, Any] = {
            "products": _curve(self.document["products"], best, source),
            "spread": self.document.get("spread", 0.1),
        }
        if "memory_bytes_per_second" in self.document:
            rate = self.document["memory_bytes_per_second"]
            device = replace(device, bytes_per_second=rate)
            given["memory"] = 1.0
        if "attention_flops_per_second" in self.document:
            given["attention"] = min(1.0, self.document["attention_flops_per_second"] / best)
        if "host_bytes_per_second" in self.document:
            given["host_bytes_per_second"] = self.document["host_bytes_per_second"]
        cluster = replace(cluster, device=device)
        for name in reversed(_LINKS):  # the curve is that of the link inside a host, if measured
            if name in self.document:
                link = self.document[name]
                fastest = max(speed for _, speed in link["points"])
                measured = Link(
                    latency_seconds=link.get("latency_seconds", 0.0), bytes_per_second=fastest
                )
                inside = measured if name == "inside" else cluster.inside
                across = measured if name == "across" else cluster.across
                cluster = replace(cluster, inside=inside, across=across)
                given["link"] = _curve(link["points"], fastest, source)
        return Machine(cluster=cluster, **given)


def read_calibration(path: Path | str) -> Calibration:
    """Return the calibration in a file.

    Raises:
        OptionError: The file cannot be read, is not such a JSON document, or has wrong values; all
            wrong keys and values are reported.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        document = json.loads(text.decode()) if len(text) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not JSON"
        raise _file_error(path, why) from error
    if not isinstance(document, dict):
        raise _file_error(path, "it is not a JSON object of at most 1 MiB")
    raise_all(_faults(document))
    return Calibration(document=document)


def _file_error(path: Path, why: str) -> OptionError:
    hint = "Pass a file of sagemaker-dist calibrate"
    return OptionError(f"{path} is no calibration", why, hint, about="calibration")


def _curve(points: Any, fastest: float, source: str) -> Curve:
    shares = tuple((float(size), speed / fastest) for size, speed in sorted(points))
    return Curve(points=shares, source=source, is_measured=True)


def _faults(document: Mapping[str, Any]) -> Iterator[OptionError]:
    for name in document:
        if name not in _KEYS:
            what, why = f"the calibration has the key {name!r}", "no such key exists"
            yield OptionError(what, why, closest(name, _KEYS), about=name, kind="unknown")
    for name in _REQUIRED:
        if name not in document:
            what, why = f"the calibration has no {name}", "predictions depend on it"
            hint = "Write the file with sagemaker-dist calibrate"
            yield OptionError(what, why, hint, about=name, kind="missing")
    valid: dict[str, tuple[Callable[[Any], bool], str]] = {
        "version": (lambda value: value == _VERSION and type(value) is int, f"{_VERSION}"),
        "device": (lambda value: isinstance(value, str), "text"),
        "date": (lambda value: isinstance(value, str), "text, such as 2026-11-27"),
        "spread": (lambda value: _is_rate(value) and value <= 1, "a number from 0 to 1"),
        "products": (_are_points, "pairs of a size and a speed, each above 0"),
        **dict.fromkeys(_RATES, (_is_rate, "a number above 0")),
        **dict.fromkeys(_LINKS, (_is_link, "an object with latency_seconds and points")),
    }
    for name, (is_valid, expected) in valid.items():
        if name in document and not is_valid(document[name]):
            what, why = f"{name} of the calibration is {shown(document[name])}", "it is wrong"
            yield OptionError(what, why, f"Write {expected}", about=name)


def _is_rate(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < 1e30  # type: ignore[operator]


def _are_points(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    pairs = all(isinstance(each, list) and len(each) == 2 for each in value)
    if not pairs or not all(_is_rate(number) for each in value for number in each):
        return False
    return len({size for size, _ in value}) == len(value)


def _is_link(value: object) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"latency_seconds", "points"}:
        return False
    latency = value.get("latency_seconds", 0.0)
    is_latency = _is_rate(latency) or (latency == 0 and not isinstance(latency, bool))
    return is_latency and _are_points(value.get("points"))
