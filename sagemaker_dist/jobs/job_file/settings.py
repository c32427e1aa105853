# SPDX-License-Identifier: Apache-2.0
"""Settings `--set KEY=VALUE`, which change values of a job file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file.schema_check import DEEPEST, FLATTEN, depth_of
from sagemaker_dist.jobs.job_file.toml_lines import key_path, split_pair

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    path: tuple[str, ...]
    value: Any


def parse_setting(text: str, schema: Mapping[str, Any]) -> Setting:
    """Parse KEY=VALUE with a TOML value; quotes may be left out around strings.

    Raises:
        OptionError: The key or the value is missing.
    """
    try:
        name, written = split_pair(text)
        path = key_path(name)
    except ValueError:
        why, hint = "it is not KEY=VALUE", "Write --set instance_count=4"
        raise OptionError(f"--set {text!r}", why, hint) from None
    kinds = {each.get("type") for each in _schemas_at(schema, path)}
    value = _text(written) if kinds == {"string"} else _value(written)
    if len(path) + depth_of(value) > DEEPEST:
        raise OptionError(
            f"--set {text[:40]!r}…", f"it is nested more than {DEEPEST} deep", FLATTEN
        )
    return Setting(path=path, value=value)


def applied(values: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """Return the values with the settings applied."""
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
    """Return all schemas that a key may have."""
    choices = _choices(schema)
    for name in path:
        inner = [each.get("properties", {}).get(name) or _others(each) for each in choices]
        choices = [choice for each in inner if each is not None for choice in _choices(each)]
    return choices


def _choices(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given: list[Mapping[str, Any]] = schema.get("anyOf", [])
    return [choice for each in given for choice in _choices(each)] or [schema]


def _others(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of a table's other keys, or None if there are none."""
    if schema.get("type", "object") != "object":
        return None
    others = schema.get("additionalProperties", {})
    return others if isinstance(others, Mapping) else None


def _text(value: str) -> Any:
    return _value(value) if value[:1] in {'"', "'"} else value


def _value(value: str) -> Any:
    """Return the TOML value of a text, or the text itself."""
    try:
        found = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # TOML's own, a number of too many digits, too many [
        return value
    return found["value"] if len(found) == 1 else value
