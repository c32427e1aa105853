# SPDX-License-Identifier: Apache-2.0
"""Prices of instance types in training jobs, each with its source and date.

Three files of one form are read; an earlier one overrides a later one:

    ~/.sagemaker-dist/prices.json       written by the user, such as negotiated prices
    ~/.sagemaker-dist/price_list.json   written by `sagemaker-dist instances refresh`
    prices.json of this package         written by hand, from published sources

A price that is in none of the files is unknown. It is never derived from other prices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import SetupError

SHIPPED_PRICES: Final = Path(__file__).with_name("prices.json")
USER_PRICES: Final = Path("~/.sagemaker-dist/prices.json")
PRICE_LIST: Final = Path("~/.sagemaker-dist/price_list.json")
_KEYS: Final = {"source": str, "date": str, "region": str, "usd_per_hour": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one instance type in one region, on demand.

    Attributes:
        instance_type: Name of the type, such as "ml.p4d.24xlarge".
        region: AWS region, such as "us-east-1".
        usd_per_hour: Price of one host, in US dollars per hour.
        source: Source of the price, and its date.
    """

    instance_type: str
    region: str
    usd_per_hour: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceNote:
    """Entry of a file of prices: prices of one region, all from one source.

    Attributes:
        source: Source of the prices.
        date: Date of the source, YYYY-MM-DD.
        region: AWS region.
        usd_per_hour: Price of one host in US dollars per hour, by instance type.
    """

    source: str
    date: str
    region: str
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)

    def prices(self) -> Iterator[Price]:
        """Yield the prices of the entry."""
        for name, value in self.usd_per_hour.items():
            yield Price(
                instance_type=name,
                region=self.region,
                usd_per_hour=value,
                source=f"{self.source}, {self.date}",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dict for JSON."""
        return {name: getattr(self, name) for name in _KEYS}


def price_files() -> tuple[Path, ...]:
    """Return the paths of the files of prices; an earlier one overrides a later one."""
    return USER_PRICES.expanduser(), PRICE_LIST.expanduser(), SHIPPED_PRICES


def price_of(instance_type: str, region: str) -> Price | None:
    """Return the price of an instance type in a region; None if it is unknown.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
    """
    return next((each for each in prices(instance_type) if each.region == region), None)


def prices(instance_type: str) -> tuple[Price, ...]:
    """Return the known prices of an instance type, one for each region, in the order of regions.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
    """
    return _by_type(note for path in price_files() for note in read_prices(path)).get(
        instance_type, ()
    )


def all_prices() -> dict[str, tuple[Price, ...]]:
    """Return the known prices by instance type, each in the order of regions.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
    """
    return _by_type(note for path in price_files() for note in read_prices(path))


def _by_type(notes: Iterable[PriceNote]) -> dict[str, tuple[Price, ...]]:
    found: dict[str, dict[str, Price]] = {}
    for note in notes:
        for each in note.prices():
            found.setdefault(each.instance_type, {}).setdefault(each.region, each)
    return {name: tuple(of[region] for region in sorted(of)) for name, of in found.items()}


def read_prices(path: Path) -> tuple[PriceNote, ...]:
    """Return the entries of a file of prices; () if the file does not exist.

    Raises:
        SetupError: The file cannot be read, or has another form.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(document, list):
        raise _unusable(path, f"it is not a list but a {type(document).__name__}")
    return tuple(_note(path, index, entry) for index, entry in enumerate(document))


def _note(path: Path, index: int, entry: Any) -> PriceNote:
    if not isinstance(entry, dict) or entry.keys() != _KEYS.keys():
        raise _unusable(path, f"entry {index} does not have exactly the keys {', '.join(_KEYS)}")
    for name, kind in _KEYS.items():
        if not isinstance(entry[name], kind):
            raise _unusable(path, f"{name} of entry {index} is {entry[name]!r}")
    for name, value in entry["usd_per_hour"].items():
        if not is_price(value):
            raise _unusable(path, f"the price of {name!r} in entry {index} is {value!r}")
    return PriceNote(**entry)


def is_price(value: Any) -> bool:
    """Return whether a value is a finite number above 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def write_prices(notes: Iterable[PriceNote], path: Path) -> None:
    """Write entries as JSON to `path`, with one line per entry key; make its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([each.as_dict() for each in notes], indent=1) + "\n", "utf-8")


def _unusable(path: Path, why: str) -> SetupError:
    return SetupError(
        f"the file of prices {path} cannot be used",
        why.rstrip("."),
        'Write a list of entries {"source": ..., "date": "YYYY-MM-DD", "region": ...,'
        ' "usd_per_hour": {"ml.p4d.24xlarge": ...}} with prices above 0, or remove the file',
        kind="bad_prices",
    )
