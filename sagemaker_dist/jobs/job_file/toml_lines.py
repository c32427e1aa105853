# SPDX-License-Identifier: Apache-2.0
"""Line numbers of the keys of a TOML text, which Python's parser does not report.

The text was parsed by Python's parser before, so it is valid. This module only finds the place of
each key, table and array entry in the text.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.errors import KeyPath

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEEPEST: Final = 100  # nested tables and arrays, far below Python's recursion limit
_GAP: Final = re.compile(r"(?:\s|#[^\n]*)*")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_DOTTED: Final = re.compile(
    rf"[ \t]*(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*[ \t]*"
)
_LONG_KEY: Final = re.compile(  # at the start of a line, or in an inline table
    rf"(?:^|[\[{{,])[ \t]*(?:(?:{_PART.pattern})[ \t]*\.[ \t]*){{{DEEPEST}}}", re.MULTILINE
)
_STRING: Final = re.compile(
    r'''"""(?:\\.|(?!""")[^\\])*"{3,5}'''  # the text itself may end in two quotes
    r"""|'''(?:(?!''').)*'{3,5}"""
    r"""|"(?:\\.|[^"\\])*"|'[^']*'""",
    re.DOTALL,
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")


def has_long_key(text: str) -> bool:
    """Return whether a key of a TOML text has more than 100 parts, with dots between them.

    Python's parser takes a minute for 50,000 parts, so this is checked before parsing. The text
    need not be valid. A line of a string that looks like such a key counts, too.
    """
    return _LONG_KEY.search(text) is not None


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number of each key, table and array entry in a TOML text, by its path.

    The first line has number 1.
    """
    reader = _Reader(text, [match.start() for match in re.finditer("\n", text)])
    reader.read()
    return reader.lines


def key_path(dotted: str) -> tuple[str, ...]:
    """Return the parts of a dotted key such as `a."b.c"`, with quotes removed.

    Raises:
        ValueError: The text is not a key, or has more than 100 parts.
    """
    if "\n" in dotted or not _DOTTED.fullmatch(dotted) or has_long_key(dotted):
        raise ValueError(dotted)
    found: dict[str, object] = tomllib.loads(f"{dotted} = 0")
    parts: list[str] = []
    inner: object = found
    while isinstance(inner, Mapping):
        part, inner = next(iter(inner.items()))
        parts.append(part)
    return tuple(parts)


def split_pair(text: str) -> tuple[str, str]:
    """Split a text KEY=VALUE into the key and the value; a quoted key may contain "=".

    Raises:
        ValueError: The text does not begin with a key and "=".
    """
    key = _DOTTED.match(text)
    if key is None or text[key.end() : key.end() + 1] != "=":
        raise ValueError(text)
    return key[0], text[key.end() + 1 :]


@dataclass
class _Reader:
    text: str
    breaks: list[int]
    at: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict)
    counts: dict[KeyPath, int] = field(default_factory=dict)  # entries of each array of tables

    def read(self) -> None:
        table: KeyPath = ()
        while self._skip() < len(self.text):
            if self._took("[["):
                table = self._header(is_entry=True)
            elif self._took("["):
                table = self._header(is_entry=False)
            else:
                self._pair(table)

    def _header(self, *, is_entry: bool) -> KeyPath:
        line, parts = self._line(), self._key()
        path: KeyPath = ()
        for number, part in enumerate(parts, start=1):
            path = (*path, part)
            self.lines.setdefault(path, line)
            if is_entry and number == len(parts):
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:  # the keys that follow belong to its last entry
                path = (*path, self.counts[path] - 1)
                self.lines.setdefault(path, line)
        for _ in range(2 if is_entry else 1):
            self._skip()
            self._took("]")
        return path

    def _pair(self, table: KeyPath) -> None:
        line, path = self._line(), table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._skip()
        self._took("=")
        self._value(path)

    def _key(self) -> list[str]:
        parts = [self._part()]
        while self._skip() < len(self.text) and self._took("."):
            parts.append(self._part())
        return parts

    def _part(self) -> str:
        self._skip()
        raw = self._take(_PART)
        return key_path(raw)[0] if raw[:1] in {'"', "'"} else raw

    def _value(self, path: KeyPath) -> None:
        self._skip()
        if self._took("["):
            self._array(path)
        elif self._took("{"):
            while not self._closes("}"):
                self._pair(path)
        elif not self._take(_STRING):
            self._take(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        number = 0
        while not self._closes("]"):
            self.lines.setdefault((*path, number), self._line())
            self._value((*path, number))
            number += 1

    def _closes(self, bracket: str) -> bool:
        self._skip()
        if self._took(","):
            self._skip()
        return self._took(bracket)

    def _skip(self) -> int:
        self._take(_GAP)
        return self.at

    def _took(self, token: str) -> bool:
        has_token = self.text.startswith(token, self.at)
        self.at += len(token) if has_token else 0
        return has_token

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def _line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1
