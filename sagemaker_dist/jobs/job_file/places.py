# SPDX-License-Identifier: Apache-2.0
"""Where things of a job file stand: faults get file, line and key; paths get their directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file.lines import KeyPath
from sagemaker_dist.jobs.job_file.shape import Fault
from sagemaker_dist.planning.locations import FILE, directory_of, scheme_of
from sagemaker_dist.planning.request import TrainingOptions

_NAMES: Final = frozenset(each.name for each in fields(TrainingOptions))
_ALIASES: Final = {"channel": "inputs"}  # what faults call a key
_CHANNEL: Final = re.compile(r"(\w+) of channel (['\"])(.+?)\2 ")
_WORD: Final = re.compile(r"\w+")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_URIS: Final = ("output_path", "checkpoint_s3_uri", "code_location")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where every key was said.

    Attributes:
        file: As errors name it.
        lines: Of the keys of the file.
        settings: Keys of the command line; they win.
        values: What was said, of both together.
    """

    file: str
    lines: Mapping[KeyPath, int]
    settings: tuple[KeyPath, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def where(self, path: KeyPath | None) -> str:
        """Where a key stands: "job.toml:3", "--set", or the file alone."""
        if path is None:
            return self.file
        if any(path[: len(each)] == each for each in self.settings):
            return "--set"
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        if not known and any(each[: len(path)] == path for each in self.settings):
            return "--set"  # it stands inside
        return f"{self.file}:{self.lines[known]}" if known else self.file

    def order(self, path: KeyPath | None) -> float:
        """Faults are told in the order of lines, then those of the command line, then others."""
        last = float("inf")
        if path is None or any(path[: len(each)] == each for each in self.settings):
            return last
        lines = [
            self.lines[path[:size]] for size in range(1, len(path) + 1) if path[:size] in self.lines
        ]
        return lines[-1] if lines else last

    def error(self, fault: Fault) -> OptionError:
        """A fault of shape with its place."""
        what = f"{self.where(fault.path)}: {spelt(fault.path)}{fault.says}"
        return OptionError(what, fault.why, fault.mend)

    def placed(self, fault: OptionError) -> OptionError:
        """A fault of the job with the place of the key that it is about."""
        what = f"{self.where(self.subject(fault.what))}: {fault.what}"
        return OptionError(what, fault.why, fault.mend)

    def subject(self, what: str) -> KeyPath | None:
        """The key that a fault is about: the innermost one that its first words name."""
        channel = _CHANNEL.match(what)
        if channel is not None:
            inner, outer = ("inputs", channel[3], channel[1]), ("inputs", channel[3])
            known = {*self.lines, *self.settings}
            return next((path for path in (inner, outer) if path in known), ("inputs",))
        words = [_ALIASES.get(word, word) for word in _WORD.findall(what)]
        first = next((word for word in words if word in _NAMES), words[0] if words else "")
        every = [*self.lines, *self.settings]
        near = [path for path in every if path[0] == first]
        if not near and first not in _NAMES:  # an option of distribution is named alone
            near = [path for path in every if path[-1] == first]
            return max(near, key=len, default=None)
        said = [path for path in near if all(_names(what, part) for part in path[1:])]
        found = max(said, key=len, default=None)
        return None if found is None else self._quoted(what, found)

    def _quoted(self, what: str, path: KeyPath) -> KeyPath:
        """The key of a table whose text the fault quotes, or the table."""
        value: Any = self.values
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        inner = value.items() if isinstance(value, Mapping) else ()
        names = [name for name, each in inner if isinstance(each, str) and repr(each) in what]
        return (*path, names[0]) if len(names) == 1 else path


def _names(what: str, part: str | int) -> bool:
    """Whether a fault's words name a part of a key: quoted, as an index, or after a dot."""
    if isinstance(part, int):
        return f"[{part}]" in what
    marks = rf"(['\"`]){re.escape(part)}\1|[.\]]{re.escape(part)}\b|\b{re.escape(part)} (is|has)\b"
    return re.search(marks, what) is not None


def spelt(path: KeyPath) -> str:
    """A key as TOML spells it, and arrays with the number of the entry."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def with_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Values whose relative paths begin at a folder; what is of another shape stays."""
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
    with suppress(RuntimeError):  # ~nobody: there is no such home, and so no such file
        place = place.expanduser()
    return str(folder / place)


def _uri(value: Any, folder: Path) -> Any:
    """file://data lies beside the file; file:///data and places elsewhere stay as they are."""
    if not isinstance(value, str) or not value.startswith(FILE) or value.startswith(f"{FILE}/"):
        return value
    try:
        return (folder / directory_of(value)).resolve().as_uri()
    except (OSError, ValueError, RuntimeError):  # no path; the checks say so
        return value
