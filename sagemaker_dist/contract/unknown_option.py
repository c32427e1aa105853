# SPDX-License-Identifier: Apache-2.0
"""Base class of typed options; the error for an unknown option names the most similar valid one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import ClassVar, TypeVar

from sagemaker_dist.errors import OptionError, closest, raise_all

T = TypeVar("T", bound="KeywordOptions")


class KeywordOptions:
    """Base of a dataclass of options whose fields are passed by name.

    Attributes:
        nested: Options that contain further options, such as `engine`, with their classes. If the
            user passes one of these further options directly, the hint says where it belongs.

    Raises:
        OptionError: An unknown option is passed; all unknown options are reported together.
    """

    __slots__ = ()
    nested: ClassVar[Mapping[str, type]] = {}

    def __new__(cls: type[T], *_: object, **options: object) -> T:
        """Check the names of all options, and return a new instance that is not initialized yet.

        `__init__` alone would report only the first unknown name.
        """
        known = _field_names(cls)
        raise_all(
            OptionError(
                f"{cls.__name__} has the option {name!r}",
                "no such option exists",
                _hint(cls, name, known),
                about=name,
                kind="unknown",
            )
            for name in options
            if name not in known
        )
        return super().__new__(cls)


def _field_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; () for another class."""
    return tuple(each.name for each in fields(cls)) if is_dataclass(cls) else ()


def _hint(cls: type[KeywordOptions], name: str, known: Iterable[str]) -> str:
    for option, other in cls.nested.items():
        if name in _field_names(other):
            return f"Pass {option}={other.__name__}({name}=...)"
    return closest(name, known)
