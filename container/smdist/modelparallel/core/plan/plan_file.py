# SPDX-License-Identifier: Apache-2.0
"""JSON file of a plan, formatted for editing by hand, with one module on each line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan_errors import PlanError, PlanErrors
from smdist.modelparallel.core.quantities import shown

_WIDTH: Final = 100
_INDENT: Final = "  "
_UNREADABLE: Final = frozenset(  # kinds of errors whose text names the file already
    ["missing_file", "unreadable", "not_text", "not_json", "too_deep", "too_large"]
)
_SAVED: Final = "Pass the path of a saved plan"
_SPREAD: Final = ("stages",)  # lists with one entry on each line, so that users can move lines


def path_of(path: object) -> Path:
    """Return `path` as a Path.

    Raises:
        PlanError: The value is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise PlanError(
            f"path is {shown(path)}",
            "it is not the path of a file",
            "Pass a str or a pathlib.Path",
            about="path",
        )
    return path if isinstance(path, Path) else Path(path)


def write(path: Path, document: object) -> None:
    """Write a JSON document to a file; an existing file is replaced atomically.

    Raises:
        PlanError: The folder does not exist or cannot be written to.
    """
    try:
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as temporary:
            try:
                temporary.write(spell(document) + "\n")
                temporary.flush()
                os.fsync(temporary.fileno())
                Path(temporary.name).chmod(0o644)
                Path(temporary.name).replace(path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as error:  # ValueError is raised for a NUL in the name
        what, why = f"{path} cannot be written", _why_not(path.parent, error)
        hint, kind = "Pass a path in a writable folder", _kind(error, "unwritable")
        raise PlanError(what, why, hint, about="path", kind=kind) from error


def read(path: Path) -> object:
    """Return the JSON value in a file.

    Raises:
        PlanError: The file cannot be read, is not JSON, is nested too deep, or repeats a key.
    """
    text = _text(path)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{path} is not JSON",
            f"line {error.lineno}, column {error.colno}: {error.msg}",
            "Look for a missing or superfluous comma or bracket there, or on the line before",
            about="path",
            kind="not_json",
        ) from error
    except RecursionError as error:
        what, why = f"{path} is not a plan", "its brackets are nested too deep"
        raise PlanError(what, why, _SAVED, about="path", kind="too_deep") from error
    except OptionError:
        raise
    except ValueError as error:
        what, why = f"{path} is not a plan", "it contains a number with thousands of digits"
        raise PlanError(what, why, _SAVED, about="path", kind="too_large") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        what, why = f"{path} cannot be read", "it is not a text file in UTF-8"
        raise PlanError(what, why, _SAVED, about="path", kind="not_text") from error
    except (OSError, ValueError) as error:
        what, kind = f"{path} cannot be read", _kind(error, "unreadable")
        raise PlanError(what, _why_not(path, error), _SAVED, about="path", kind=kind) from error


def _kind(error: Exception, otherwise: str) -> str:
    """Return the kind of an error of the file system: "missing_file", or else `otherwise`."""
    return "missing_file" if isinstance(error, FileNotFoundError) else otherwise


def _why_not(path: Path, error: Exception) -> str:
    """Return a text that says why the file or folder `path` cannot be used."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def named(path: Path, error: OptionError) -> PlanError:
    """Return an error of a plan as a PlanError that names the plan's file."""
    faults = getattr(error, "faults", (error,))
    errors = [
        PlanError(
            each.what
            if each.kind in _UNREADABLE and each.about == ("path",)
            else f"{path}, {each.what}",
            *rest,
        )
        for each in faults
        for rest in [(each.why, each.hint, each.about, each.kind)]
    ]
    return errors[0] if len(errors) == 1 else PlanErrors(tuple(errors))


def spell(value: object, indent: str = "", *, spread: bool = False) -> str:
    """Return a value as indented JSON text.

    An inner list or dict is written on one line if it fits. Otherwise each entry has its own line.

    Args:
        value: Value of JSON types.
        indent: Spaces before the line on which the text begins.
        spread: True to write each entry of a list on its own line, even if the list would fit.
    """
    line = json.dumps(value, ensure_ascii=False)
    is_list = isinstance(value, list)
    if not value or not isinstance(value, dict | list) or _fits(line, indent, value, spread):
        return line
    inner = indent + _INDENT
    if is_list:
        assert isinstance(value, list)
        entries = [spell(each, inner, spread=spread) for each in value]
    else:
        assert isinstance(value, dict)
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {spell(each, inner, spread=key in _SPREAD)}"
            for key, each in value.items()
        ]
    opening, closing = "[]" if is_list else "{}"
    return f"{opening}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{closing}"


def _fits(line: str, indent: str, value: object, spread: bool) -> bool:
    """Return True if a value's JSON text is short enough for one line.

    Args:
        line: JSON text of the value.
        indent: Spaces before the line. Without spaces, the result is False.
        value: Value of JSON types.
        spread: True to return False for every list.
    """
    if not indent or (spread and isinstance(value, list)):
        return False
    return len(indent) + len(line) <= _WIDTH


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a JSON object, or raise PlanError if a key is repeated."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise PlanError(
                f"the key {key!r} is repeated",
                "an object can have each key once only",
                "Remove one of the two",
                about=key,
                kind="repeated",
            )
    return made
