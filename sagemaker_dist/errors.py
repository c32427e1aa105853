# SPDX-License-Identifier: Apache-2.0
"""Every error this package raises on purpose.

DistError
├── OptionError (ValueError)   the request is wrong            -> mend the call
│   └── OptionErrors           several faults of one request   -> mend each
├── SkewError                  SDK and image disagree          -> upgrade one of them
├── SetupError                 this machine lacks something    -> install it
└── JobError                   a job failed or was stopped     -> read its log
    └── LaunchError            a host could not start its ranks -> read which step failed

A runner may tell finer kinds of its own apart, below these (runners/sagemaker/errors.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DistError(Exception):
    """Base class: what went wrong, why, and how to mend it."""

    def __init__(self, what: str, why: str, mend: str) -> None:
        super().__init__(what, why, mend)  # plain args: workers pickle errors
        self.what, self.why, self.mend = what, why, mend

    def __str__(self) -> str:
        end = "" if self.mend.endswith("?") else "."
        return f"{self.what}: {self.why}. {self.mend}{end}"


class OptionError(DistError, ValueError):
    """The request is wrong; nothing was started."""


class OptionErrors(OptionError):  # noqa: N818  several of them
    """Several faults of one request, in the order they were found."""

    def __init__(self, faults: tuple[OptionError, ...]) -> None:
        Exception.__init__(self, faults)
        self.faults = faults

    def __str__(self) -> str:
        lines = (f"  {number}. {fault}" for number, fault in enumerate(self.faults, start=1))
        return "\n".join([f"{len(self.faults)} faults in this request:", *lines])


class SkewError(DistError):
    """The SDK and the image speak different versions of the wire."""


class SetupError(DistError):
    """Something this machine needs is not installed or not running."""


class JobError(DistError):
    """A job failed or was stopped."""


class LaunchError(JobError):
    """A host could not start its ranks."""


def require(condition: bool, *, what: str, why: str, mend: str) -> None:
    """Raise OptionError with these three parts unless `condition` holds."""
    if not condition:
        raise OptionError(what, why, mend)


def raise_all(faults: Iterable[OptionError]) -> None:
    """Raise every fault at once: none passes, one is itself, several are OptionErrors."""
    flat = tuple(part for fault in faults for part in getattr(fault, "faults", (fault,)))
    if len(flat) == 1:
        raise flat[0]
    if flat:
        raise OptionErrors(flat)


def closest(word: str, valid: Iterable[str]) -> str:
    """Say which valid word is meant, for the mend of an error about `word`."""
    valid = sorted(valid)
    match = get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    return f"Did you mean {match[0]!r}?" if match else f"Valid are {', '.join(map(repr, valid))}"
