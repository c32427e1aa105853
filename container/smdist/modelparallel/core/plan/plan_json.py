# SPDX-License-Identifier: Apache-2.0
"""Conversion of a plan to JSON types and back; all faults of an edited plan are reported at once.

The keys are the names of the attributes of the plan's dataclasses, and the annotations define the
valid values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from sagemaker_dist.errors import KeyPath, OptionError, closest
from smdist.modelparallel.core.note import OTHER
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import shown

VERSION: Final = 1
_MOST: Final = 10**18  # largest number in a plan
Document = dict[str, Any]
_T = TypeVar("_T")
_NAMES: Final = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


class _Place(NamedTuple):
    """Place of a value in a JSON document: a text for errors, and the path of keys."""

    text: str
    path: KeyPath

    def key(self, name: str) -> _Place:
        """Return the location, in the JSON document, of the value with the key `name`."""
        return _Place(f"{self.text}, {name}", (*self.path, name))

    def item(self, key: str | int) -> _Place:
        """Return the location, in the JSON document, of the entry with this index or key."""
        return _Place(f"{self.text}[{key!r}]", (*self.path, key))


def write(plan: object) -> Document:
    """Return a dataclass as a dict of JSON types, with the format version as first key."""
    assert is_dataclass(plan)
    assert not isinstance(plan, type)
    spelled = _listed(asdict(plan))
    assert isinstance(spelled, dict)
    return {"version": VERSION, **spelled}


def read(cls: type[_T], found: object, where: str) -> _T:
    """Return an object of the dataclass `cls` from a dict that `write` returned.

    Args:
        cls: Class of the result.
        found: Dict to read.
        where: Name of the dict in errors.

    Raises:
        PlanError: The format version is another one, keys are missing or unknown, or values have
            wrong types; all faults but the version are reported at once.
    """
    if not isinstance(found, dict):
        raise _wrong(_Place(where, ()), "an object with keys", found)
    version = found.get("version")
    if version != VERSION or isinstance(version, bool):
        why = f"this release reads version {VERSION} of plans"
        hint = "Make a new plan, or use the release that wrote this plan"
        what = f"{where} has version {shown(version)}"
        kind = "version" if "version" in found else "missing"
        raise PlanError(what, why, hint, about="version", kind=kind)
    rest = {key: value for key, value in found.items() if key != "version"}
    if isinstance(rest.get("notes"), list):
        rest["notes"] = [_note(each) for each in rest["notes"]]
    faults: list[OptionError] = []
    made: _T = _read(cls, rest, _Place(where, ()), faults)
    raise_faults(faults)
    return made


def _note(found: Any) -> Any:
    """Return a note, which is a message for users in a plan file, as a dict.

    Args:
        found: Note in the file. Files of earlier releases have a plain string.
    """
    return {"kind": OTHER, "text": found} if isinstance(found, str) else found


def _listed(value: Any) -> Any:
    """Return a value with all tuples in it replaced by lists."""
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return value


def _read(hint: Any, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    """Return a JSON value converted to the type of an annotation; None if its type is wrong.

    Args:
        hint: Annotation of the value.
        found: JSON value.
        place: Place of the value, for errors.
        faults: List to which errors are appended.
    """
    if get_origin(hint) is UnionType:
        if found is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if is_dataclass(hint):
        return _read_dataclass(hint, found, place, faults)
    if get_origin(hint) is tuple:
        return _read_list(hint, found, place, faults)
    if get_origin(hint) is Mapping:
        return _read_mapping(hint, found, place, faults)
    is_number = hint is float and isinstance(found, int)
    if not (isinstance(found, hint) or is_number) or isinstance(found, bool) != (hint is bool):
        faults.append(_wrong(place, _NAMES[hint], found))
        return None
    if hint in (int, float) and not (abs(found) <= _MOST):
        faults.append(_wrong(place, f"{_NAMES[hint]} of at most {_MOST:.0e}", found, "too_large"))
        return None
    return float(found) if hint is float else found


def _read_dataclass(hint: Any, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(place, "an object with keys", found))
        return None
    known = {each.name: each for each in fields(hint)}
    before = len(faults)
    faults.extend(_key_faults(known, found, place))
    hints = get_type_hints(hint)
    values = {
        name: _read(hints[name], found[name], place.key(name), faults)
        for name in known
        if name in found
    }
    if len(faults) > before:
        return None
    try:
        return hint(**values)
    except OptionError as error:
        faults.append(error)
        return None


def _key_faults(
    known: Mapping[str, Field[Any]], found: Mapping[str, Any], place: _Place
) -> Iterator[OptionError]:
    for key in found:
        if key not in known:
            what = f"{place.text} has the key {key!r}"
            why, about = "a plan has no such key here", (*place.path, key)
            yield PlanError(what, why, closest(key, known), about=about, kind="unknown")
    for name, field in known.items():
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and name not in found:
            what = f"{place.text} lacks the key {name!r}"
            hint = "Copy the key and its value from the original plan"
            about = (*place.path, name)
            yield PlanError(what, "this key is required", hint, about=about, kind="missing")


def _read_list(hint: Any, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, list):
        faults.append(_wrong(place, "a list", found))
        return ()
    inner = get_args(hint)[0]
    return tuple(_read(inner, each, place.item(index), faults) for index, each in enumerate(found))


def _read_mapping(hint: Any, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(place, "an object with keys", found))
        return {}
    inner = get_args(hint)[1]
    return {key: _read(inner, each, place.item(key), faults) for key, each in found.items()}


def _wrong(place: _Place, expected: str, found: object, kind: str = "type") -> PlanError:
    value = "null" if found is None else shown(found)
    hint = f"Replace this value by {expected}"
    what = f"{place.text} is {value}"
    return PlanError(what, f"a plan needs {expected} here", hint, about=place.path, kind=kind)
