# SPDX-License-Identifier: Apache-2.0
"""Check of values against a JSON Schema; each fault has the path of the wrong key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Final

from sagemaker_dist.contract.distribution_keys import DATA, MODEL, OPTIONS, SMDIST, STRATEGIES
from sagemaker_dist.errors import KeyPath, closest

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
FLATTEN: Final = "Use fewer levels, or move the values to a file that the script reads"
_WORDS: Final = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "array": "an array",
    "object": "a table",
}

_LONGEST: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Violation of the JSON Schema by a value of a job file.

    Attributes:
        path: Path of the key, such as ("inputs", "train", "uri").
        why: Reason, in words.
        hint: Advice for the user.
        is_what: Text after the key's name in the error, such as " is 4"; may be empty.
    """

    path: KeyPath
    why: str
    hint: str
    is_what: str = ""


def shape_faults(schema: Mapping[str, Any], value: Any, path: KeyPath = ()) -> Iterator[Fault]:
    """Yield a fault for every difference between a value and its JSON Schema.

    `path` is the path of the value's key, such as ("inputs", "train"); it is empty for the whole
    file.
    """
    if isinstance(value, (date, time)):
        yield Fault(path=path, why="no option of a job is a date", hint="Put the value in quotes")
    elif not _fits_kind(schema, value):
        words = " or ".join(_WORDS[kind] for kind in _kinds(schema))
        shown, why = f" is {value!r}", f"it is {_WORDS[_kind_of(value)]}"
        yield Fault(path=path, is_what=shown, why=why, hint=f"Write {words}")
    elif value not in schema.get("enum", [value]):
        hint = closest(str(value), schema["enum"])
        yield Fault(
            path=path,
            is_what=f" is {value!r}",
            why="the key does not allow this value",
            hint=hint,
        )
    else:
        yield from _inner_faults(_chosen(schema, value), value, path)


def depth_of(value: Any) -> int:
    """Return the number of levels to which tables and arrays are nested in a value.

    The result is 0 for a value that is neither a table nor an array.
    """
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [part for each in inner for part in each]
    return depth


def _inner_faults(schema: Mapping[str, Any], value: Any, path: KeyPath) -> Iterator[Fault]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from shape_faults(schema.get("items", {}), each, (*path, number))
    if not isinstance(value, dict):
        return
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for name, each in value.items():
        if name not in known and others is False:
            hint = _place_of(name) if not path else ""
            hint = hint or closest(name, known)
            if len(hint) > _LONGEST:  # a list of all keys is too long to help
                hint = "See: sagemaker-dist schema"
            yield Fault(path=(*path, name), why="no such key exists", hint=hint)
        else:
            yield from shape_faults(known.get(name, others), each, (*path, name))
    for name in schema.get("required", []):
        if name not in value:
            yield Fault(
                path=path,
                is_what=f" has no {name!r}",
                why="the key is required",
                hint="Add the key",
            )


def _place_of(name: str) -> str:
    """Return a hint for a key at the top of the file that belongs below `distribution`.

    Return "" if the key does not belong there.
    """
    if name in STRATEGIES:
        return f"Write it below distribution, as [distribution.{name}]"
    for key in (DATA, MODEL):
        if name in OPTIONS[key] or name == key:
            return f"Write it below [distribution.{SMDIST}.{key}]"
    return ""


def _fits_kind(schema: Mapping[str, Any], value: Any) -> bool:
    kinds = _kinds(schema)
    return not kinds or any(_is(value, kind) for kind in kinds)


def _chosen(schema: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    """Return the first schema in the list "anyOf" of `schema` that fits the type of a value.

    Return `schema` itself if it has no such list, or if no schema in the list fits.
    """
    choices: list[Mapping[str, Any]] = schema.get("anyOf", [])
    return next((_chosen(each, value) for each in choices if _fits_kind(each, value)), schema)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return list(dict.fromkeys(kind for each in schema["anyOf"] for kind in _kinds(each)))
    return [schema["type"]] if "type" in schema else []


def _is(value: Any, kind: str) -> bool:
    is_bool = isinstance(value, bool)  # a bool is an int in Python
    return isinstance(value, _KINDS[kind]) and is_bool == (kind == "boolean")


def _kind_of(value: Any) -> str:
    return next(kind for kind in _KINDS if _is(value, kind))
