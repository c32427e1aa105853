# SPDX-License-Identifier: Apache-2.0
"""Prices of instance types in training jobs, each with its source and date.

Files of one form are read; an earlier one overrides a later one:

    ~/.sagemaker-dist/prices.json       written by the user, such as negotiated prices
    ~/.sagemaker-dist/price_list.json   written by `sagemaker-dist instances refresh`
    ~/.sagemaker-dist/spot_prices.json  written by `sagemaker-dist instances spot`
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

from sagemaker_dist.errors import SetupError, require

SHIPPED_PRICES: Final = Path(__file__).with_name("prices.json")
USER_PRICES: Final = Path("~/.sagemaker-dist/prices.json")
PRICE_LIST: Final = Path("~/.sagemaker-dist/price_list.json")
SPOT_PRICES: Final = Path("~/.sagemaker-dist/spot_prices.json")
_KEYS: Final = {"source": str, "date": str, "region": str | None, "usd_per_hour": dict}
_SPOT: Final = "spot_usd_per_hour"  # this key may be left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one instance type in one region.

    Attributes:
        instance_type: Name of the type, such as "ml.p4d.24xlarge".
        region: AWS region, such as "us-east-1"; None if the source does not state it.
        usd_per_hour: Price of one host, in US dollars per hour.
        source: Source of the price, and its date.
    """

    instance_type: str
    region: str | None
    usd_per_hour: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceNote:
    """Entry of a file of prices: prices of one region, all from one source.

    Attributes:
        source: Source of the prices.
        date: Date of the source, YYYY-MM-DD.
        region: AWS region; None if the source does not state it.
        usd_per_hour: Price of one host in US dollars per hour on demand, by instance type.
        spot_usd_per_hour: Price of one host on spot instances, which only the user's bill can
            tell: AWS publishes none for training jobs.
    """

    source: str
    date: str
    region: str | None
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    spot_usd_per_hour: Mapping[str, float] = field(default_factory=dict)

    def prices(self, *, spot: bool = False) -> Iterator[Price]:
        """Yield the prices of the entry on demand, or those on spot instances."""
        for name, value in (self.spot_usd_per_hour if spot else self.usd_per_hour).items():
            yield Price(
                instance_type=name,
                region=self.region,
                usd_per_hour=value,
                source=f"{self.source}, {self.date}",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dict for JSON."""
        entry = {name: getattr(self, name) for name in _KEYS}
        return entry | ({_SPOT: self.spot_usd_per_hour} if self.spot_usd_per_hour else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices to compare instance types by.

    Attributes:
        on_demand: Price on demand by instance type.
        spot: Price on spot instances by instance type.
    """

    on_demand: Mapping[str, Price]
    spot: Mapping[str, Price]


def price_files() -> tuple[Path, ...]:
    """Return the paths of the files of prices; an earlier one overrides a later one."""
    own = (USER_PRICES, PRICE_LIST, SPOT_PRICES)
    return *(each.expanduser() for each in own), SHIPPED_PRICES


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


def prices_for(region: str | None = None, file: Path | None = None) -> Prices:
    """Return one price for each instance type, from the first file that has one.

    Args:
        region: Region of the prices; prices whose source states no region are taken if the same
            file has none in the region. Default: any region, the lowest price of a file.
        file: File that overrides the others.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
        OptionError: `file` does not exist.
    """
    require(
        file is None or file.exists(),
        what=f"the file of prices {file} cannot be used",
        why="it does not exist",
        hint="Pass the path of a file of prices, or leave it out",
        about="prices",
        kind="missing_file",
    )
    found: dict[bool, dict[str, Price]] = {False: {}, True: {}}
    for path in (*([file] if file is not None else []), *price_files()):
        notes = read_prices(path)
        for spot, chosen in found.items():
            every = [each for note in notes for each in note.prices(spot=spot)]
            usable = [each for each in every if region is None or each.region in (region, None)]
            usable.sort(key=lambda each: (region is not None and each.region is None,
                                          each.usd_per_hour))  # fmt: skip
            for each in reversed([one for one in usable if one.instance_type not in chosen]):
                chosen[each.instance_type] = each  # the last one written is the first of `usable`
    return Prices(on_demand=found[False], spot=found[True])


def all_prices() -> dict[str, tuple[Price, ...]]:
    """Return the known prices by instance type, each in the order of regions.

    Raises:
        SetupError: A file of prices cannot be read, or has another form.
    """
    return _by_type(note for path in price_files() for note in read_prices(path))


def _by_type(notes: Iterable[PriceNote]) -> dict[str, tuple[Price, ...]]:
    found: dict[str, dict[str | None, Price]] = {}
    for note in notes:
        for each in note.prices():
            found.setdefault(each.instance_type, {}).setdefault(each.region, each)
    return {
        name: tuple(of[region] for region in sorted(of, key=lambda each: each or ""))
        for name, of in found.items()
    }


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
    if not isinstance(entry, dict) or entry.keys() - {_SPOT} != _KEYS.keys():
        why = f"entry {index} does not have exactly the keys {', '.join(_KEYS)}, or {_SPOT} too"
        raise _unusable(path, why)
    for name, kind in _KEYS.items():
        if not isinstance(entry[name], kind):
            raise _unusable(path, f"{name} of entry {index} is {entry[name]!r}")
    spot = entry.get(_SPOT, {})
    if not isinstance(spot, dict):
        raise _unusable(path, f"{_SPOT} of entry {index} is {spot!r}")
    for name, value in (*entry["usd_per_hour"].items(), *spot.items()):
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
