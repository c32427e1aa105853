# SPDX-License-Identifier: Apache-2.0
"""Errors that this package raises on purpose.

DistError
├── OptionError (ValueError)   the request is wrong            -> fix the call
│   └── OptionErrors           several faults of one request   -> fix each
├── SkewError                  SDK and image disagree          -> upgrade one of them
├── SetupError                 this machine lacks something    -> install it
└── JobError                   a job failed or was stopped     -> read its log
    └── LaunchError            a host could not start its ranks -> read which step failed

A runner may define subclasses of its own (runners/sagemaker/api_errors.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, ClassVar, Final

KeyPath = tuple[str | int, ...]
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class DistError(Exception):
    """Base class: what went wrong, why, and a hint; each is a field, too.

    Attributes:
        about: Path of the option or key that is wrong, such as ("inputs", "train", "uri");
            empty if the error is about none.
        kind: One word for programs: "option", "setup", "job" and others, by class; finer if
            one was given.
    """

    default_kind: ClassVar[str] = "error"

    def __init__(
        self, what: str, why: str, hint: str, about: str | KeyPath = (), kind: str = ""
    ) -> None:
        about = (about,) if isinstance(about, str) else tuple(about)
        super().__init__(what, why, hint)  # plain args: workers pickle errors
        self.what, self.why, self.hint = what, why, hint
        self.about: KeyPath = about
        self.kind = kind or self.default_kind

    def __str__(self) -> str:
        end = "" if self.hint.endswith("?") else "."
        return f"{self.what}: {self.why}. {self.hint}{end}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {
            "kind": self.kind,
            "about": dotted(self.about) or None,
            "what": self.what,
            "why": self.why,
            "hint": self.hint,
        }


class OptionError(DistError, ValueError):
    """The request is wrong; nothing was started."""

    default_kind = "option"


class OptionErrors(OptionError):  # noqa: N818 - it holds several errors
    """Several faults of one request, in the order they were found."""

    def __init__(self, faults: tuple[OptionError, ...]) -> None:
        Exception.__init__(self, faults)
        self.faults = faults
        self.about, self.kind = (), "options"

    def __str__(self) -> str:
        lines = (f"  {number}. {fault}" for number, fault in enumerate(self.faults, start=1))
        return "\n".join([f"{len(self.faults)} faults in this request:", *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of every fault."""
        return {"kind": self.kind, "faults": [fault.as_dict() for fault in self.faults]}


class SkewError(DistError):
    """The SDK and the image have incompatible versions."""

    default_kind = "skew"


class SetupError(DistError):
    """Something this machine needs is not installed or not running."""

    default_kind = "setup"


class JobError(DistError):
    """A job failed or was stopped."""

    default_kind = "job"


class LaunchError(JobError):
    """A host could not start its ranks."""

    default_kind = "launch"


def require(condition: bool, *, what: str, why: str, hint: str, about: str | KeyPath = ()) -> None:
    """Raise OptionError with these parts unless `condition` holds."""
    if not condition:
        raise OptionError(what, why, hint, about)


def parts_of(error: OptionError) -> tuple[OptionError, ...]:
    """Return the faults of an error: those of several, or the one that it is."""
    return error.faults if isinstance(error, OptionErrors) else (error,)


def raise_all(faults: Iterable[OptionError]) -> None:
    """Raise all faults together: none if there are none, one as it is, several as OptionErrors."""
    flat = tuple(part for fault in faults for part in parts_of(fault))
    if len(flat) == 1:
        raise flat[0]
    if flat:
        raise OptionErrors(flat)


def within(faults: Iterable[OptionError], *parents: str | int) -> Iterator[OptionError]:
    """Return faults of an inner table, with the keys of the outer tables before their own."""
    for fault in faults:
        for part in parts_of(fault):
            part.about = *parents, *part.about
        yield fault


def subscripted(path: KeyPath) -> str:
    """Spell a path as Python does: `tags[0]['Key']`."""
    first, *rest = path
    return f"{first}{''.join(f'[{part!r}]' for part in rest)}"


def dotted(path: KeyPath) -> str:
    """Spell a path as TOML does: `inputs.train.uri`, `instance_groups[0].instance_type`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def closest(word: str, valid: Iterable[str]) -> str:
    """Return a hint with the valid word closest to `word`, or with all valid words."""
    valid = sorted(valid)
    match = get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    return f"Did you mean {match[0]!r}?" if match else f"Valid are {', '.join(map(repr, valid))}"
