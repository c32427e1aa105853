# SPDX-License-Identifier: Apache-2.0
"""Prices of training instances in US dollars, each with source and date.

    prices_by_hand.json   figures read in public documents, shipped with the package
    a file of the user    written by `sagemaker-dist instances refresh --prices`, or by hand

A price that is in neither is unknown, and never estimated. The file is JSON: a list of objects
with `source`, `date` (YYYY-MM-DD), `region` (or null), `dollars_per_hour` (an object from
instance types to dollars of one hour of one host) and, if known, `spot_dollars_per_hour`. AWS
publishes no spot prices of SageMaker training, so that no spot price is shipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sagemaker_dist.errors import OptionError, raise_all

_BY_HAND: Final = Path(__file__).with_name("prices_by_hand.json")
_KEYS: Final = {"source", "date", "region", "dollars_per_hour", "spot_dollars_per_hour"}
_TABLES: Final = ("dollars_per_hour", "spot_dollars_per_hour")
_HINT: Final = "Write the file with sagemaker-dist instances refresh --prices FILE, and compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one hour of one host.

    Attributes:
        dollars_per_hour: US dollars per hour of a host.
        source: Where the figure was read.
        date: Day on which it was read, YYYY-MM-DD.
        region: AWS region of the price; None if the source does not state it.
    """

    dollars_per_hour: float
    source: str
    date: str
    region: str | None = None

    @property
    def dated_source(self) -> str:
        """Source, region and date as one text."""
        where = f" in {self.region}" if self.region else ""
        return f"{self.source}{where}, read {self.date}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Known prices by instance type.

    Attributes:
        on_demand: Prices on demand.
        spot: Prices on spot instances, which only the user's file has.
    """

    on_demand: Mapping[str, Price]
    spot: Mapping[str, Price]

    def overridden_by(self, other: Prices) -> Prices:
        """Return these prices, replaced by those of `other` where it has one."""
        return Prices(
            on_demand=MappingProxyType({**self.on_demand, **other.on_demand}),
            spot=MappingProxyType({**self.spot, **other.spot}),
        )


@cache
def shipped_prices() -> Prices:
    """Return the prices of the package's table."""
    return _prices(json.loads(_BY_HAND.read_text("utf-8")))


def read_prices(path: Path) -> Prices:
    """Return the prices in a file of the user.

    Raises:
        OptionError: The file cannot be read, or entries of it are wrong; all are reported.
    """
    try:
        notes = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", None) or error)
        what = f"the prices in {path} cannot be read"
        raise OptionError(what, why, _HINT, about="prices", kind="unreadable_file") from error
    raise_all(_faults(notes, path))
    return _prices(notes)


def write_prices(prices: Iterable[tuple[str, Price]], path: Path) -> None:
    """Write prices on demand as a file that `read_prices` reads.

    Args:
        prices: Pairs of instance type and price; all have the source and date of the first.
        path: File to write.
    """
    rows = sorted(prices, key=lambda each: each[0])
    first = rows[0][1]
    note = {
        "source": first.source,
        "date": first.date,
        "region": first.region,
        "dollars_per_hour": {name: price.dollars_per_hour for name, price in rows},
    }
    path.write_text(json.dumps([note], indent=1) + "\n", "utf-8")


def _prices(notes: list[dict[str, Any]]) -> Prices:
    found: dict[str, dict[str, Price]] = {name: {} for name in _TABLES}
    for note in notes:
        about = {"source": note["source"], "date": note["date"], "region": note.get("region")}
        for table, prices in found.items():
            for name, dollars in note.get(table, {}).items():
                prices[name] = Price(dollars_per_hour=float(dollars), **about)
    on_demand, spot = (MappingProxyType(found[name]) for name in _TABLES)
    return Prices(on_demand=on_demand, spot=spot)


def _faults(notes: object, path: Path) -> Iterator[OptionError]:
    """Yield a fault for each wrong entry of the JSON in a file of prices."""
    if not isinstance(notes, list) or not all(isinstance(each, dict) for each in notes):
        what, why = f"{path} has no prices", "it must be a JSON list of objects"
        yield OptionError(what, why, _HINT, about="prices", kind="type")
        return
    for index, note in enumerate(notes):
        at = ("prices", index)
        for key in sorted(set(note) - _KEYS):
            what, why = f"{path}, entry {index} has the key {key!r}", "no such key exists"
            hint = f"Keys are {', '.join(sorted(_KEYS))}"
            yield OptionError(what, why, hint, about=(*at, key), kind="unknown")
        for key in ("source", "date"):
            if not isinstance(note.get(key), str) or (key == "date" and not _is_day(note[key])):
                what = f"{path}, entry {index}: {key} is {note.get(key)!r}"
                why = "each price has a source, and a date such as 2026-11-27"
                yield OptionError(what, why, f"Write the {key} as text", about=(*at, key))
        region = note.get("region")
        if region is not None and not isinstance(region, str):
            what, why = f"{path}, entry {index}: region is {region!r}", "it is a name or null"
            yield OptionError(what, why, "Write a name such as us-east-1", about=(*at, "region"))
        for table in _TABLES:
            yield from _table_faults(note.get(table, {}), path, (*at, table))


def _table_faults(table: object, path: Path, about: tuple[str | int, ...]) -> Iterator[OptionError]:
    if not isinstance(table, dict):
        what, why = f"{path}: {about[-1]} is {table!r}", "it must be an object by instance type"
        yield OptionError(what, why, _HINT, about=about, kind="type")
        return
    for name, dollars in table.items():
        is_number = isinstance(dollars, int | float) and not isinstance(dollars, bool)
        if not (is_number and 0 < dollars < math.inf):
            what = f"{path}: the price of {name} is {dollars!r}"
            why = "it must be a number of dollars above 0"
            hint = "Correct it, or leave the type out if its price is unknown"
            yield OptionError(what, why, hint, about=(*about, name))


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
