# SPDX-License-Identifier: Apache-2.0
"""File and line of each fault in a job file, and the base directory of its relative paths."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import KeyPath, OptionError, dotted
from sagemaker_dist.jobs.job_file.schema_check import Fault
from sagemaker_dist.planning.locations import FILE, directory_of, scheme_of
from sagemaker_dist.planning.request import TrainingOptions

_NAMES: Final = frozenset(each.name for each in fields(TrainingOptions))
_URIS: Final = ("output_path", "checkpoint_s3_uri", "code_location")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Origin of every key of a job: a line of the job file, or the command line.

    A path of a key is a tuple of names, such as ("inputs", "train", "uri").

    Attributes:
        file: Name of the file in errors.
        lines: Path of a key -> its line in the file.
        settings: Paths of the keys that are set on the command line. They replace keys of the file.
        values: Values of all keys, from the file and the command line.
    """

    file: str
    lines: Mapping[KeyPath, int]
    settings: tuple[KeyPath, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def where(self, path: KeyPath | None) -> str:
        """Return the origin of a key as text: file and line ("job.toml:3"), or "--set".

        `path` is the path of the key, or None if it is unknown. If the line is unknown, the result
        is the file's name alone.
        """
        if path is None:
            return self.file
        if any(path[: len(each)] == each for each in self.settings):
            return "--set"
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        if not known and any(each[: len(path)] == path for each in self.settings):
            return "--set"  # a setting sets a key of this table
        return f"{self.file}:{self.lines[known]}" if known else self.file

    def order(self, path: KeyPath | None) -> float:
        """Return a sort key for errors: the line in the job file of the key that an error is about.

        `path` is the path of this key. If `path` is None, or the key has no line, the result is
        infinity, so that the error comes last. Keys of the command line have no line.
        """
        last = float("inf")
        if path is None or any(path[: len(each)] == each for each in self.settings):
            return last
        lines = [
            self.lines[path[:size]] for size in range(1, len(path) + 1) if path[:size] in self.lines
        ]
        return lines[-1] if lines else last

    def error(self, fault: Fault) -> OptionError:
        """Return an OptionError with the text of `fault`, and with its file and line."""
        what = f"{self.where(fault.path)}: {dotted(fault.path)}{fault.is_what}"
        return OptionError(what, fault.why, fault.hint, fault.path)

    def placed(self, fault: OptionError) -> OptionError:
        """Return a copy of `fault` with the file and line of the wrong key before its text."""
        what = f"{self.where(self.key_of(fault.about))}: {fault.what}"
        return OptionError(what, fault.why, fault.hint, fault.about, fault.kind)

    def key_of(self, about: KeyPath) -> KeyPath | None:
        """Return the path of the key that an error is about, or None if it is about no key.

        `about` may be only the end of a path. The result is then the longest path of the job file
        that ends with it.
        """
        if not about or about[0] in _NAMES:
            return about or None
        near = [path for path in (*self.lines, *self.settings) if path[-len(about) :] == about]
        return max(near, key=len, default=None)


def with_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values of a job file, with paths that are relative to `folder` made absolute.

    Values of wrong types stay as they are; the checks report them.
    """
    changed = dict(values)
    for name in ("source_dir",) if "source_dir" in values else ("entry_point",):
        changed[name] = _path(values.get(name), folder)
    if isinstance(values.get("dependencies"), list):
        changed["dependencies"] = [_path(each, folder) for each in values["dependencies"]]
    for name in _URIS:
        changed[name] = _uri(values.get(name), folder)
    changed["inputs"] = _inputs(values.get("inputs"), folder)
    return {name: value for name, value in changed.items() if name in values}


def _inputs(inputs: Any, folder: Path) -> Any:
    if not isinstance(inputs, dict):
        return _uri(inputs, folder)
    return {name: _channel(each, folder) for name, each in inputs.items()}


def _channel(channel: Any, folder: Path) -> Any:
    if not isinstance(channel, dict) or "uri" not in channel:
        return _uri(channel, folder)
    return {**channel, "uri": _uri(channel["uri"], folder)}


def _path(value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or scheme_of(value) in {"s3", "https"}:
        return value
    place = Path(directory_of(value))
    with suppress(RuntimeError):  # ~user without a home directory
        place = place.expanduser()
    return str(folder / place)


def _uri(value: Any, folder: Path) -> Any:
    """Return a relative URI such as file://data as an absolute one, with `folder` as its base.

    Other values are returned unchanged.
    """
    if not isinstance(value, str) or not value.startswith(FILE) or value.startswith(f"{FILE}/"):
        return value
    try:
        return (folder / directory_of(value)).resolve().as_uri()
    except (OSError, ValueError, RuntimeError):  # no valid path; the checks report it
        return value
