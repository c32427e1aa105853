# SPDX-License-Identifier: Apache-2.0
"""Errors that this package raises on purpose, and what the user should do about each.

DistError
├── OptionError (ValueError)   the request is wrong                  -> fix the call
│   └── OptionErrors           the request has several faults        -> fix each
├── SkewError                  SDK and image have incompatible versions -> upgrade one of them
├── SetupError                 this machine lacks something          -> install it
└── JobError                   a job failed or was stopped           -> read its log
    └── LaunchError            a host could not start its ranks      -> read which step failed

The code that runs jobs on SageMaker defines further subclasses, in runners/sagemaker/api_errors.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, ClassVar, Final

KeyPath = tuple[str | int, ...]
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SIMILAR: Final = 0.6  # least ratio of a misspelt word and the right one, from 0 to 1
_FILLER: Final = 3  # letters of a word that may be missing


class DistError(Exception):
    """Base class of this package's errors; the text of an error is "what: why. hint."

    Attributes:
        what: What is wrong, with the offending value.
        why: Reason why that is wrong.
        hint: What the user should do.
        about: Path of the option or key that is wrong, such as ("inputs", "train", "uri");
            () if the error is not about an option.
        kind: One word by which programs distinguish errors, such as "unknown". By default, the
            `default_kind` of the class, such as "option", "setup" or "job".
        own_fields: Names of further attributes of a subclass, which are passed by name. Their
            defaults are attributes of the class. `as_dict` has those that differ from the default.

    Raises:
        TypeError: An argument passed by name is none of `own_fields`.
    """

    default_kind: ClassVar[str] = "error"
    own_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, what: str, why: str, hint: str, about: str | KeyPath = (), kind: str = "", **own: Any
    ) -> None:
        if unknown := own.keys() - {*self.own_fields}:
            raise TypeError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        about = (about,) if isinstance(about, str) else tuple(about)
        super().__init__(what, why, hint)  # plain args: workers pickle errors
        self.what, self.why, self.hint = what, why, hint
        self.about: KeyPath = about
        self.kind = kind or self.default_kind
        for name, value in own.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        end = "" if self.hint.endswith("?") else "."
        return f"{self.what}: {self.why}. {self.hint}{end}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON.

        `about` becomes text such as "inputs.train.uri", or None if it is empty.
        """
        own = {name: getattr(self, name) for name in self.own_fields}
        return {
            "kind": self.kind,
            "about": dotted(self.about) or None,
            "what": self.what,
            "why": self.why,
            "hint": self.hint,
            **{name: value for name, value in own.items() if value != getattr(type(self), name)},
        }


class OptionError(DistError, ValueError):
    """Error raised when an option of a request is wrong, before a job is started."""

    default_kind = "option"


class OptionErrors(OptionError):  # noqa: N818 - it holds several errors
    """Several errors of one request, raised together.

    Attributes:
        faults: The errors, in the order in which they were found.
    """

    def __init__(self, faults: tuple[OptionError, ...]) -> None:
        Exception.__init__(self, faults)
        self.faults = faults
        self.about, self.kind = (), "options"

    def __str__(self) -> str:
        lines = (f"  {number}. {fault}" for number, fault in enumerate(self.faults, start=1))
        return "\n".join([f"{len(self.faults)} faults in this request:", *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return {"kind": ..., "faults": [...]} for JSON, with the fields of each fault."""
        return {"kind": self.kind, "faults": [fault.as_dict() for fault in self.faults]}


class SkewError(DistError):
    """Error raised when the versions of the SDK and the training image are incompatible."""

    default_kind = "skew"


class SetupError(DistError):
    """Error raised when the setup lacks something, such as Docker, a package or AWS credentials."""

    default_kind = "setup"


class JobError(DistError):
    """Error raised when a job failed or was stopped.

    Attributes:
        cause: Fields of the failure that ended the job, such as {"host": "algo-2", "rank": 3,
            "kind": "lost", ...}. Empty if only the text of the failure is known, as for jobs on
            SageMaker. The page "When a job fails or hangs" lists the fields.
    """

    default_kind = "job"

    own_fields: ClassVar[tuple[str, ...]] = ("cause",)
    cause: Mapping[str, Any] = MappingProxyType({})


class LaunchError(JobError):
    """Error raised when a host of a job could not start its ranks.

    Attributes:
        culprit: The rank because of which it could not, such as one that never joined; None if it
            is this host's own fault, or no rank is known.
    """

    default_kind = "launch"

    own_fields: ClassVar[tuple[str, ...]] = ("cause", "culprit")
    culprit: int | None = None


def require(
    condition: bool, *, what: str, why: str, hint: str, about: str | KeyPath = (), kind: str = ""
) -> None:
    """Raise OptionError(what, why, hint, about, kind) if `condition` is False."""
    if not condition:
        raise OptionError(what, why, hint, about, kind)


def parts_of(error: OptionError) -> tuple[OptionError, ...]:
    """Return the faults of an OptionErrors; for any other error, a tuple of this error alone."""
    return error.faults if isinstance(error, OptionErrors) else (error,)


def raise_all(faults: Iterable[OptionError]) -> None:
    """Raise all faults together.

    One fault is raised unchanged, several as one OptionErrors. Without faults, nothing is raised.
    """
    flat = tuple(part for fault in faults for part in parts_of(fault))
    if len(flat) == 1:
        raise flat[0]
    if flat:
        raise OptionErrors(flat)


def within(faults: Iterable[OptionError], *parents: str | int) -> Iterator[OptionError]:
    """Yield each fault with `parents` put before its path `about`.

    A check of one channel reports ("uri",); `within(faults, "inputs", "train")` makes it
    ("inputs", "train", "uri"). An OptionErrors is yielded with all its faults changed.
    """
    for fault in faults:
        for part in parts_of(fault):
            part.about = *parents, *part.about
        yield fault


def subscripted(path: KeyPath) -> str:
    """Return a path of keys in Python's notation, such as `tags[0]['Key']`."""
    first, *rest = path
    return f"{first}{''.join(f'[{part!r}]' for part in rest)}"


def dotted(path: KeyPath) -> str:
    """Return a path of keys in TOML's notation, such as `inputs.train.uri` or `groups[0].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def closest(word: str, valid: Iterable[str]) -> str:
    """Return a hint that names the valid word most similar to `word`.

    If no valid word is similar, the hint lists all of them. A name with another word in it, such as
    "expert_parallel_degree", is no misspelt "tensor_parallel_degree".
    """
    valid, given = sorted(valid), word.lower()
    begun = [each for each in valid if len(given) > _FILLER and each.lower().startswith(given)]
    close = get_close_matches(given, valid, n=3, cutoff=_SIMILAR)
    likely = [*(each for each in close if _has_words_of(each, given)), *begun]
    return f"Did you mean {likely[0]!r}?" if likely else f"Valid are {', '.join(map(repr, valid))}"


def _has_words_of(name: str, given: str) -> bool:
    """Return True if each long word of `given`, such as "batch" in "batch_size", is in `name`.

    A word is also in `name` if a similar one is. Words of three letters, such as "num", may be
    missing.
    """
    words = name.lower().split("_")
    return "".join(words) == given.replace("_", "") or all(
        len(word) == _FILLER or get_close_matches(word, words, n=1, cutoff=_SIMILAR)
        for word in given.split("_")
        if word
    )
