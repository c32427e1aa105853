# SPDX-License-Identifier: Apache-2.0
"""`--set KEY=VALUE`: what the command line says instead of the file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file.lines import key_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One of them."""

    path: tuple[str, ...]
    value: Any


def parse_setting(text: str, schema: Mapping[str, Any]) -> Setting:
    """A value as TOML writes it; quotes may be left out where a string is expected or meant.

    Raises:
        OptionError: There is no key, or no value.
    """
    name, mark, value = text.partition("=")
    try:
        path = key_path(name.strip())
    except ValueError:
        path = ()
    if not mark or not path:
        why, mend = "it is no key and value", "Write --set instance_count=4"
        raise OptionError(f"--set {text!r}", why, mend)
    is_text = _schema_at(schema, path).get("type") == "string"
    return Setting(path=path, value=_text(value) if is_text else _value(value))


def applied(values: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """The values with the settings in their places."""
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


def _schema_at(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    for name in path:
        others = schema.get("additionalProperties") or {}
        schema = schema.get("properties", {}).get(name, others)
    return schema


def _text(value: str) -> Any:
    return _value(value) if value[:1] in {'"', "'"} else value


def _value(value: str) -> Any:
    """As TOML reads it, or the text itself."""
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return value
    return found["value"] if len(found) == 1 else value
