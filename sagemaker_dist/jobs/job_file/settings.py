# SPDX-License-Identifier: Apache-2.0
"""Settings: options `--set KEY=VALUE` of a command line, which change values of a job file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file.schema_check import FLATTEN, depth_of
from sagemaker_dist.jobs.job_file.toml_lines import DEEPEST, has_long_key, key_path, split_pair

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHOWN: Final = 400  # characters of a setting that an error shows whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option --set KEY=VALUE.

    Attributes:
        path: Parts of KEY, such as ("hyperparameters", "lr").
        value: VALUE, parsed as TOML.
    """

    path: tuple[str, ...]
    value: Any


def parse_setting(text: str, schema: Mapping[str, Any]) -> Setting:
    """Return the setting for a text KEY=VALUE; VALUE is TOML, but strings need no quotes.

    `schema` is the JSON Schema of job files. If a key is a string in the schema, its value is the
    text, unchanged.

    Raises:
        OptionError: The text is not KEY=VALUE, or the value is nested too deep.
    """
    try:
        name, written = split_pair(text)
        path = key_path(name)
    except ValueError:
        shown = repr(text) if len(text) < _SHOWN else f"{text[:40]!r}…"
        why, hint = "it is not KEY=VALUE", "Write --set instance_count=4"
        if has_long_key(text):
            why, hint = f"it is nested more than {DEEPEST} levels deep", FLATTEN
        raise OptionError(f"--set {shown}", why, hint) from None
    kinds = {each.get("type") for each in _schemas_at(schema, path)}
    value = _text(written) if kinds == {"string"} else _value(written)
    if len(path) + depth_of(value) > DEEPEST:
        raise OptionError(
            f"--set {text[:40]!r}…",
            f"tables and arrays in the value are nested more than {DEEPEST} levels deep",
            FLATTEN,
            path,
        )
    return Setting(path=path, value=value)


def applied(values: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """Return a copy of the values of a job file, changed by settings.

    Each setting sets the value of one key, and replaces the file's value if there is one.
    """
    changed = dict(values)
    for each in settings:
        changed = _put(changed, each.path, each.value)
    return changed


def _put(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**values, name: value}
    inner = values.get(name)
    return {**values, name: _put(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def _schemas_at(schema: Mapping[str, Any], path: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Return all JSON Schemas that the value of a key may follow.

    There are several if a schema has a choice ("anyOf"), and none if the key is unknown. `schema`
    is the schema of the whole file, `path` the path of the key.
    """
    choices = _choices(schema)
    for name in path:
        inner = [each.get("properties", {}).get(name) or _others(each) for each in choices]
        choices = [choice for each in inner if each is not None for choice in _choices(each)]
    return choices


def _choices(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given: list[Mapping[str, Any]] = schema.get("anyOf", [])
    return [choice for each in given for choice in _choices(each)] or [schema]


def _others(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema of keys that `schema` allows but does not list by name.

    Return None if `schema` allows no such keys, or does not describe an object.
    """
    if schema.get("type", "object") != "object":
        return None
    others = schema.get("additionalProperties", {})
    return others if isinstance(others, Mapping) else None


def _text(value: str) -> Any:
    return _value(value) if value[:1] in {'"', "'"} else value


def _value(value: str) -> Any:
    """Parse a text as a TOML value. Return the text itself if it is not TOML."""
    try:
        found = {} if has_long_key(value) else tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # not TOML, too many digits, or nested too deep
        return value
    return found["value"] if len(found) == 1 else value
