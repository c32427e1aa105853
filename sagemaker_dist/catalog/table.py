# SPDX-License-Identifier: Apache-2.0
"""Table of instance types that is part of the package.

The table is stored in three files, so that a refresh does not overwrite what was written by hand:

    instance_types.json         facts from EC2, written by `sagemaker-dist instances refresh`
    by_hand.json                facts that EC2 does not report, or reports wrongly
    compute_capabilities.json   compute capability of each GPU model, from NVIDIA

A fact that is in none of the files is unknown. As the table is part of the package, misspelt types
are found without network access.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sagemaker_dist.catalog.instances import Instance

SHIPPED: Final = Path(__file__).with_name("instance_types.json")
_BY_HAND: Final = Path(__file__).with_name("by_hand.json")
_CAPABILITIES: Final = Path(__file__).with_name("compute_capabilities.json")
_UNKNOWN: Final = Instance(name="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Instance types as EC2 described them on one day.

    Attributes:
        source: Call of EC2's API that described the types, and its region.
        names: Source of the list of names.
        date: Date of both sources, YYYY-MM-DD.
        instances: Instance types by name. A type that EC2 has never described has only its name. A
            type that EC2 did not describe on this day has the facts and source of an older table.
    """

    source: str
    names: str
    date: str
    instances: Mapping[str, Instance]

    @property
    def dated_source(self) -> str:
        """Return the source and the date of this table as one text, for `Instance.sources`."""
        return f"{self.source}, {self.date}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """Entry of by_hand.json: facts about one or more instance types, all from one source."""

    source: str
    date: str
    corrects: bool  # True: replaces facts from EC2; False: only adds facts that are missing
    types: Mapping[str, Mapping[str, Any]]


@cache
def training_instances() -> Mapping[str, Instance]:
    """Return the instance types of the package's table, by name.

    Most facts are from EC2. Facts from by_hand.json complete or correct them; the compute
    capability follows from the GPU's model.
    """
    notes = [_Note(**note) for note in json.loads(_BY_HAND.read_text("utf-8"))]
    capabilities = json.loads(_CAPABILITIES.read_text("utf-8"))
    table = read_table(SHIPPED)
    return MappingProxyType(
        {
            name: _with_capability(_with_notes(instance, notes), capabilities)
            for name, instance in table.instances.items()
        }
    )


def read_table(path: Path) -> Table:
    """Return the table in a file that `write_table` wrote."""
    document = json.loads(path.read_text("utf-8"))
    rows = document.pop("types")
    table = Table(**document, instances={})
    instances = {name: _instance(name, row, table.dated_source) for name, row in rows.items()}
    return replace(table, instances=MappingProxyType(instances))


def write_table(table: Table, path: Path) -> None:
    """Write a table as JSON to `path`, with one line per type so that diffs are readable."""
    head = {"source": table.source, "names": table.names, "date": table.date}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = [
        f"  {json.dumps(name)}: {json.dumps(dict(_row(table.instances[name], table.dated_source)))}"
        for name in sorted(table.instances)
    ]
    path.write_text(
        "\n".join(["{", *lines, ' "types": {', ",\n".join(rows), " }", "}", ""]), "utf-8"
    )


def _instance(name: str, row: dict[str, Any], source: str) -> Instance:
    sources = (row.pop("source", source),) if row else ()
    return Instance(name=name, sources=sources, **row)


def _row(instance: Instance, source: str) -> Iterator[tuple[str, Any]]:
    for field in fields(instance):
        value = getattr(instance, field.name)
        if field.name not in ("name", "sources") and not _is_unknown(instance, field.name):
            yield field.name, value
    if instance.sources and instance.sources != (source,):
        yield "source", instance.sources[0]


def _is_unknown(instance: Instance, field: str) -> bool:
    return bool(getattr(instance, field) == getattr(_UNKNOWN, field))


def _with_notes(instance: Instance, notes: list[_Note]) -> Instance:
    for note in notes:
        stated = note.types.get(instance.name, {})
        changes = {
            field: value
            for field, value in stated.items()
            if _is_unknown(instance, field) or (note.corrects and getattr(instance, field) != value)
        }
        if changes:
            sources = (*instance.sources, f"{note.source}, {note.date}")
            instance = replace(instance, sources=sources, **changes)
    return instance


def _with_capability(instance: Instance, notes: list[dict[str, Any]]) -> Instance:
    for note in notes:
        found = note["compute_capabilities"].get(instance.accelerator)
        if found is not None:
            sources = (*instance.sources, f"{note['source']}, {note['date']}")
            return replace(instance, sources=sources, compute_capability=found)
    return instance
