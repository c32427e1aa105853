# SPDX-License-Identifier: Apache-2.0
"""Conversion of a plan to JSON types and back; all faults of an edited plan are reported at once.

Keys are the names of the attributes, and their annotations define the valid values, so neither is
listed a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.quantities import shown

VERSION: Final = 1
_MOST: Final = 10**18  # largest number in a plan
Document = dict[str, Any]
_T = TypeVar("_T")
_NAMES: Final = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def write(plan: object) -> Document:
    """Return a dataclass and everything in it as JSON types, after a version."""
    assert is_dataclass(plan)
    assert not isinstance(plan, type)
    spelled = _listed(asdict(plan))
    assert isinstance(spelled, dict)
    return {"version": VERSION, **spelled}


def read(cls: type[_T], found: object, where: str) -> _T:
    """Read the dataclass that `write` wrote.

    Raises:
        PlanError: Keys are missing, unknown or of another type (all faults at once), or the version
            is another one.
    """
    if not isinstance(found, dict):
        raise _wrong(where, "an object with keys", found)
    version = found.get("version")
    if version != VERSION or isinstance(version, bool):
        why = f"this release reads version {VERSION}"
        hint = "Plan anew, or use the release that wrote it"
        raise PlanError(f"{where} has version {shown(version)}", why, hint)
    rest = {key: value for key, value in found.items() if key != "version"}
    faults: list[OptionError] = []
    made: _T = _read(cls, rest, where, faults)
    raise_faults(faults)
    return made


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return value


def _read(hint: Any, found: Any, where: str, faults: list[OptionError]) -> Any:
    if get_origin(hint) is UnionType:
        if found is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if is_dataclass(hint):
        return _read_dataclass(hint, found, where, faults)
    if get_origin(hint) is tuple:
        return _read_list(hint, found, where, faults)
    if get_origin(hint) is Mapping:
        return _read_mapping(hint, found, where, faults)
    is_number = hint is float and isinstance(found, int)
    if not (isinstance(found, hint) or is_number) or isinstance(found, bool) != (hint is bool):
        faults.append(_wrong(where, _NAMES[hint], found))
        return None
    if hint in (int, float) and not (abs(found) <= _MOST):
        faults.append(_wrong(where, f"{_NAMES[hint]} of at most {_MOST:.0e}", found))
        return None
    return float(found) if hint is float else found


def _read_dataclass(hint: Any, found: Any, where: str, faults: list[OptionError]) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(where, "an object with keys", found))
        return None
    known = {each.name: each for each in fields(hint)}
    before = len(faults)
    faults.extend(_key_faults(known, found, where))
    hints = get_type_hints(hint)
    values = {
        name: _read(hints[name], found[name], f"{where}, {name}", faults)
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
    known: Mapping[str, Field[Any]], found: Mapping[str, Any], where: str
) -> Iterator[OptionError]:
    for key in found:
        if key not in known:
            what = f"{where} has the key {key!r}"
            yield PlanError(what, "nothing reads it", closest(key, known))
    for name, field in known.items():
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and name not in found:
            what = f"{where} lacks the key {name!r}"
            yield PlanError(what, "it has no default", "Take it from the plan you began with")


def _read_list(hint: Any, found: Any, where: str, faults: list[OptionError]) -> Any:
    if not isinstance(found, list):
        faults.append(_wrong(where, "a list", found))
        return ()
    inner = get_args(hint)[0]
    return tuple(
        _read(inner, each, f"{where}[{index}]", faults) for index, each in enumerate(found)
    )


def _read_mapping(hint: Any, found: Any, where: str, faults: list[OptionError]) -> Any:
    if not isinstance(found, dict):
        faults.append(_wrong(where, "an object with keys", found))
        return {}
    inner = get_args(hint)[1]
    return {key: _read(inner, each, f"{where}[{key!r}]", faults) for key, each in found.items()}


def _wrong(where: str, expected: str, found: object) -> PlanError:
    said = "null" if found is None else shown(found)
    return PlanError(f"{where} is {said}", f"this has to be {expected}", "Write one there")
