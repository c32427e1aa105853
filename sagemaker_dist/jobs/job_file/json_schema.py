# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of job files, made from the types of the job's options.

With this schema, editors complete and check job files. sagemaker-dist also uses it for its checks.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from os import PathLike
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from sagemaker_dist.contract import DataParallel, ModelParallel
from sagemaker_dist.planning.request import FileSystemInput, S3Input, TrainingOptions

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
_ENTRY: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


@cache
def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of job files. It is made once; do not change it."""
    document = schema_of(TrainingOptions)
    document["properties"] |= {
        "distribution": _described("distribution", _distribution()),
        "inputs": _described("inputs", _inputs()),
        "framework": _described("framework", {"enum": ["torch", "tensorflow"]}),
    }
    title = "A training job of sagemaker-dist"
    return {"$schema": _DRAFT, "title": title, **document}


def input_schema(uri: Any) -> dict[str, Any]:
    """Return the JSON Schema of the TOML table of an input channel.

    `uri` is the URI of the channel's data. For fsx:// and efs://, the result is the schema of
    `FileSystemInput`, else the schema of `S3Input`.
    """
    return schema_of(FileSystemInput if is_file_system(uri) else S3Input)


def is_file_system(uri: Any) -> bool:
    """Return whether a URI names a file system: FSx (fsx://…) or EFS (efs://…)."""
    return isinstance(uri, str) and uri.startswith(("fsx://", "efs://"))


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema for values of a Python type hint.

    A None in the type hint is ignored: TOML has no null, so a key without a value is left out.
    """
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if is_dataclass(hint):
        return _object(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(parts)
    if origin is PathLike:
        return {"type": "string"}
    if origin is Sequence or origin is tuple:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    return {}


def _either(parts: tuple[Any, ...]) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for part in parts:
        schema = schema_of(part)
        if part is not type(None) and schema not in choices:
            choices.append(schema)
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _object(kind: Any) -> dict[str, Any]:
    hints, texts = get_type_hints(kind), _texts(kind)
    properties, required = {}, []
    for each in fields(kind):
        text = {"description": texts[each.name]} if each.name in texts else {}
        properties[each.name] = {**schema_of(hints[each.name]), **text, **_default(each.default)}
        if each.default is MISSING and each.default_factory is MISSING:
            required.append(each.name)
    needed = {"required": required} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **needed}


def _default(value: Any) -> dict[str, Any]:
    return {"default": value} if isinstance(value, (str, int, bool)) else {}


def _texts(kind: Any) -> dict[str, str]:
    """Return the descriptions in the docstring of a dataclass, each on one line, by attribute."""
    _, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    return {name: " ".join(text.split()) for name, text in _ENTRY.findall(attributes)}


def _described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "description": _texts(TrainingOptions)[name]}


def _distribution() -> dict[str, Any]:
    """Return the JSON Schema of the option `distribution`, which describes its key "smdist" only.

    The other keys are checked when `distribution` is parsed.
    """
    strategies = {"dataparallel": _object(DataParallel), "modelparallel": _object(ModelParallel)}
    ours = {"type": "object", "properties": strategies}
    return {"type": "object", "properties": {"smdist": ours}}


def _inputs() -> dict[str, Any]:
    place = {"type": "string"}
    channel = {"anyOf": [place, _object(S3Input), _object(FileSystemInput)]}
    return {"anyOf": [place, {"type": "object", "additionalProperties": channel}]}
