# SPDX-License-Identifier: Apache-2.0
"""File of a plan: JSON for editing by hand, with one unit per line."""

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
_FILE: Final = "file"  # kind of a fault that names the file itself
_SAVED: Final = "Pass the path of a plan that was saved"
_SPREAD: Final = ("stages",)  # lists with one entry per line, so that lines can be moved


def path_of(path: object) -> Path:
    """Return `path` as a Path.

    Raises:
        PlanError: The value is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise PlanError(
            f"path is {shown(path)}",
            "plans are files",
            "Pass a str or a pathlib.Path",
            about="path",
        )
    return Path(path)


def write(path: Path, document: object) -> None:
    """Write a document atomically: the whole document or nothing.

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
        raise PlanError(what, why, "Pass a path in a folder that is writable") from error


def read(path: Path) -> object:
    """Read the JSON in a file.

    Raises:
        PlanError: The file does not exist, its JSON is invalid or cannot be a plan, or a key is
            repeated.
    """
    text = _text(path)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{path}, line {error.lineno}, column {error.colno}",
            f"this is no JSON: {error.msg}",
            "Look for a comma or bracket that is missing or too many, there or on the line before",
            kind=_FILE,
        ) from error
    except RecursionError as error:
        what, why = f"{path} is no plan", "its brackets stand within each other too deep"
        raise PlanError(what, why, _SAVED, kind=_FILE) from error
    except OptionError:
        raise
    except ValueError as error:
        what, why = f"{path} is no plan", "a number in it has thousands of digits"
        raise PlanError(what, why, _SAVED, kind=_FILE) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        what = f"{path} cannot be read"
        raise PlanError(what, "it is no text in UTF-8", _SAVED, kind=_FILE) from error
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{path} cannot be read", _why_not(path, error), _SAVED, kind=_FILE
        ) from error


def _why_not(path: Path, error: Exception) -> str:
    """Return the reason in plain words, without the name of a temporary file."""
    if isinstance(error, FileNotFoundError):
        return f"there is no {path}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def named(path: Path, error: OptionError) -> PlanError:
    """Return the error with the file's path in its text."""
    faults = getattr(error, "faults", (error,))
    told = [
        PlanError(each.what if each.kind == _FILE else f"{path}, {each.what}", *rest)
        for each in faults
        for rest in [(each.why, each.hint, each.about, each.kind)]
    ]
    return told[0] if len(told) == 1 else PlanErrors(tuple(told))


def spell(value: object, indent: str = "", *, spread: bool = False) -> str:
    """Format a value as JSON: on one line if it fits, otherwise one entry per line."""
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
    if not indent or (spread and isinstance(value, list)):
        return False
    return len(indent) + len(line) <= _WIDTH


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise PlanError(f"the key {key!r}", "it stands twice", "Keep one of the two")
    return dict(pairs)
