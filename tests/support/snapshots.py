# SPDX-License-Identifier: Apache-2.0
"""Golden files of requests, short enough to read: each row holds only its differences.

    {"images": {image: {"common": request,
                        "distributions": {distribution: [{"on": instances, ...}, ...]}}},
     "warnings": {text: {image: {distribution: instances}}}}

A refused row has an "error" in place of its "request". The common part of all requests of an
image is stored once, and so is a warning. The tests write
the files themselves if SMDIST_UPDATE_SNAPSHOTS=1 is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

IS_UPDATE = os.environ.get("SMDIST_UPDATE_SNAPSHOTS") == "1"
Row = tuple[str, str, str]  # image, distribution, instances


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a row: a request or the text of an error, and the texts of warnings."""

    request: Mapping[str, Any] | None = None
    error: str | None = None
    warnings: frozenset[str] = field(default_factory=frozenset)

    @property
    def parameters(self) -> Mapping[str, str]:
        """Hyperparameters of the request."""
        return {} if self.request is None else self.request["HyperParameters"]


def load(path: Path) -> dict[Row, Outcome]:
    """Return the rows of a golden file, or none if it does not exist."""
    return unpack(json.loads(path.read_text())) if path.exists() else {}


def save(path: Path, rows: Mapping[Row, Outcome]) -> None:
    """Write a golden file."""
    path.write_text(json.dumps(pack(rows), indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def pack(rows: Mapping[Row, Outcome]) -> dict[str, Any]:
    """Return the rows in the format of the file."""
    images: dict[str, Any] = {}
    for image in {row[0] for row in rows}:
        requests = [each.request for row, each in rows.items() if row[0] == image]
        images[image] = {"common": shared(filter(None, requests)), "distributions": {}}
    warnings: dict[str, Any] = {}
    for (image, distribution, instances), outcome in sorted(rows.items(), key=itemgetter(0)):
        section = images[image]
        entries = section["distributions"].setdefault(distribution, [])
        _add(entries, instances, _entry(section["common"], outcome))
        for text in outcome.warnings:
            said = warnings.setdefault(text, {}).setdefault(image, {})
            said[distribution] = f"{said.get(distribution, '')} {instances}".strip()
    return {"images": images, "warnings": warnings}


def _entry(common: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    if outcome.request is None:
        return {"error": outcome.error}
    return {"request": difference(common, outcome.request)}


def _add(entries: list[dict[str, Any]], instances: str, entry: dict[str, Any]) -> None:
    """Merge a row with equal rows on other instances."""
    for each in entries:
        if entry.items() <= each.items():
            each["on"] += f" {instances}"
            return
    entries.append({"on": instances, **entry})


def unpack(written: Mapping[str, Any]) -> dict[Row, Outcome]:
    """Return the rows of a file's content."""
    rows: dict[Row, Outcome] = {}
    for image, section in written["images"].items():
        for distribution, entries in section["distributions"].items():
            for entry, instances in (
                (each, name) for each in entries for name in each["on"].split()
            ):
                row = (image, distribution, instances)
                request = entry.get("request")
                rows[row] = Outcome(
                    request=None if request is None else merged(section["common"], request),
                    error=entry.get("error"),
                    warnings=_said(written["warnings"], row),
                )
    return rows


def _said(warnings: Mapping[str, Any], row: Row) -> frozenset[str]:
    image, distribution, instances = row
    return frozenset(
        text
        for text, said in warnings.items()
        if instances in said.get(image, {}).get(distribution, "").split()
    )


def shared(requests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the common part of all requests, dict by dict."""
    first, *others = list(requests) or [{}]
    alike: dict[str, Any] = {}
    for name, value in first.items():
        values = [each.get(name) for each in others]
        if isinstance(value, dict) and all(isinstance(each, dict) for each in values):
            if part := shared([value, *values]):
                alike[name] = part
        elif all(each == value for each in values):
            alike[name] = value
    return alike


def difference(base: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a request to a base as a merge patch (RFC 7386): None removes a key."""
    changes: dict[str, Any] = {name: None for name in base if name not in request}
    for name, value in request.items():
        if name not in base:
            changes[name] = value
        elif base[name] != value:
            both = isinstance(value, dict) and isinstance(base[name], dict)
            changes[name] = difference(base[name], value) if both else value
    return changes


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of a base and its changes."""
    request = {name: value for name, value in base.items() if changes.get(name, ...) is not None}
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            request[name] = merged(base[name], value)
        elif value is not None:
            request[name] = value
    return request
