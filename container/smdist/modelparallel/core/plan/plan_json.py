# SPDX-License-Identifier: Apache-2.0
"""Conversion of a plan to JSON types and back; all faults of an edited plan are reported at once.

The keys are the names of the attributes of the plan's dataclasses, and the annotations define the
valid values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from sagemaker_dist.contract import plan_version
from sagemaker_dist.errors import KeyPath, OptionError, closest
from smdist.modelparallel.core.note import OTHER
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import shown

_MOST: Final = 10**18  # largest number in a plan
Document = dict[str, Any]
_T = TypeVar("_T")
_SCALARS: Final = frozenset([int, float, str, bool, NoneType])
_NAMES: Final = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


# Place of a value in a JSON document: place of the object or list that holds the value, its key or
# index there, and True for an entry of a list or a mapping, False for an attribute of a dataclass.
# For the whole document: None, its name in errors, False. A plan has hundreds of places, and only
# an error needs one, so a place is a plain tuple.
_Place = tuple["_Place | None", str | int, bool]


def _text(place: _Place) -> str:
    """Return a place as text for errors, such as "this plan, forecast, stages[2]"."""
    outer, name, is_item = place
    if outer is None:
        return str(name)
    return f"{_text(outer)}{f'[{name!r}]' if is_item else f', {name}'}"


def _path(place: _Place) -> KeyPath:
    """Return the path of keys and indices from the whole document to a value."""
    outer, name, _ = place
    return () if outer is None else (*_path(outer), name)


# Function that converts a JSON value to the type of an annotation. It appends errors to the list;
# if there is one, its result is not used.
_Reader = Callable[[Any, _Place, list[OptionError]], Any]


class _Key(NamedTuple):
    """Key of a JSON object, made from a field of a dataclass."""

    read: _Reader
    is_needed: bool


def write(plan: object) -> Document:
    """Return a dataclass as a dict of JSON types, with the format version as first key."""
    assert is_dataclass(plan)
    assert not isinstance(plan, type)
    spelled = _spelled(plan)
    assert isinstance(spelled, dict)
    return {"version": plan_version.NEWEST, **spelled}


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
        raise _wrong((None, where, False), "an object with keys", found)
    if not plan_version.is_read(found.get("version")):
        raise _version_error(found, where)
    rest = {key: value for key, value in found.items() if key != "version"}
    if isinstance(rest.get("notes"), list):
        rest["notes"] = [_note(each) for each in rest["notes"]]
    return convert(cls, rest, where)


def _version_error(found: Document, where: str) -> PlanError:
    """Return the error for a plan of a version that this release does not read."""
    if "version" not in found:
        what, why = f"{where} lacks the key 'version'", "it says which keys a plan has"
        hint = "Copy the key and its value from the original plan, or make a new plan"
        return PlanError(what, why, hint, about="version", kind="missing")
    version = found["version"]
    why = f"this release reads versions {plan_version.READ} of plans"
    hint = "Make a new plan"
    if plan_version.is_newer(version):
        hint = (
            "Update sagemaker-dist here, or the image of the job, to the release that wrote it; or"
            " make a new plan with this release"
        )
    return PlanError(
        f"{where} has version {shown(version)}", why, hint, about="version", kind="version"
    )


def convert(cls: type[_T], found: object, where: str, *, what: str = "a plan") -> _T:
    """Return an object of a dataclass from a JSON object whose keys are the names of its fields.

    Args:
        cls: Class of the result.
        found: JSON object to convert.
        where: Name of the object in errors.
        what: Kind of document in errors.

    Raises:
        PlanError: Keys are missing or unknown, or values have wrong types; all are reported at
            once.
    """
    faults: list[OptionError] = []
    annotation: Any = cls
    made: _T = _reader(annotation)(found, (None, where, False), faults)
    if what != "a plan":
        flat = [part for each in faults for part in getattr(each, "faults", (each,))]
        faults = [_renamed(each, what) for each in flat]
    raise_faults(faults)
    return made


def _renamed(fault: OptionError, what: str) -> OptionError:
    """Return an error of this module for another kind of document than a plan."""
    why, hint = (text.replace("a plan", what) for text in (fault.why, fault.hint))
    hint = hint.replace("original plan", "original file")
    return type(fault)(fault.what, why, hint, about=fault.about, kind=fault.kind)


def _note(found: Any) -> Any:
    """Return a note, which is a message for users in a plan file, as a dict.

    Args:
        found: Note in the file. Files of earlier releases have a plain string.
    """
    return {"kind": OTHER, "text": found} if isinstance(found, str) else found


def _spelled(value: Any) -> Any:
    """Return a value in JSON types: dataclasses become dicts, and tuples become lists."""
    cls: Any = type(value)
    if cls in _SCALARS:
        return value
    if is_dataclass(value):
        return {name: _spelled(getattr(value, name)) for name in _keys(cls)}
    if isinstance(value, Mapping):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value


@cache
def _reader(hint: Any) -> _Reader:
    """Return the function that reads values of an annotation; it is made once for each."""
    cls: Any = hint
    if get_origin(hint) is UnionType:
        (inner,) = (each for each in get_args(hint) if each is not NoneType)
        return partial(_read_optional, _reader(inner))
    if is_dataclass(hint):
        return partial(_read_dataclass, cls, _keys(cls))
    if get_origin(hint) is tuple:
        return partial(_read_list, _reader(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return partial(_read_mapping, _reader(get_args(hint)[1]))
    return partial(_read_number if hint in (int, float) else _read_scalar, hint)


@cache
def _keys(cls: Any) -> Mapping[str, _Key]:
    """Return the keys of the JSON object for a dataclass, by name."""
    hints = get_type_hints(cls)
    return {
        each.name: _Key(
            read=_reader(hints[each.name]),
            is_needed=each.default is MISSING and each.default_factory is MISSING,
        )
        for each in fields(cls)
    }


def _read_optional(inner: _Reader, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    return None if found is None else inner(found, place, faults)


def _read_scalar(hint: type, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, hint) or isinstance(found, bool) != (hint is bool):
        faults.append(_wrong(place, _NAMES[hint], found))
    return found


def _read_number(hint: type, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    is_number = isinstance(found, int if hint is int else int | float)
    if not is_number or isinstance(found, bool):
        faults.append(_wrong(place, _NAMES[hint], found))
    elif not -_MOST <= found <= _MOST:  # NaN is not in this range either
        faults.append(_wrong(place, f"{_NAMES[hint]} of at most {_MOST:.0e}", found, "too_large"))
    else:
        return float(found) if hint is float else found
    return None


def _read_dataclass(
    hint: Any,
    keys: Mapping[str, _Key],
    found: Any,
    place: _Place,
    faults: list[OptionError],
) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(place, "an object with keys", found))
        return None
    before = len(faults)
    if found.keys() != keys.keys():
        faults.extend(_key_faults(keys, found, place))
    values = {
        name: key.read(found[name], (place, name, False), faults)
        for name, key in keys.items()
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
    known: Mapping[str, _Key], found: Mapping[str, Any], place: _Place
) -> Iterator[OptionError]:
    for name in found:
        if name not in known:
            what = f"{_text(place)} has the key {name!r}"
            why, about = "a plan has no such key here", (*_path(place), name)
            yield PlanError(what, why, closest(name, known), about=about, kind="unknown")
    for name, key in known.items():
        if key.is_needed and name not in found:
            what = f"{_text(place)} lacks the key {name!r}"
            hint = "Copy the key and its value from the original plan"
            about = (*_path(place), name)
            yield PlanError(what, "this key is required", hint, about=about, kind="missing")


def _read_list(inner: _Reader, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, list):
        faults.append(_wrong(place, "a list", found))
        return ()
    return tuple(inner(each, (place, index, True), faults) for index, each in enumerate(found))


def _read_mapping(inner: _Reader, found: Any, place: _Place, faults: list[OptionError]) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(place, "an object with keys", found))
        return {}
    return {key: inner(each, (place, key, True), faults) for key, each in found.items()}


def _wrong(place: _Place, expected: str, found: object, kind: str = "type") -> PlanError:
    value = "null" if found is None else shown(found)
    hint = f"Replace this value by {expected}"
    what = f"{_text(place)} is {value}"
    return PlanError(what, f"a plan needs {expected} here", hint, about=_path(place), kind=kind)
