# SPDX-License-Identifier: Apache-2.0
"""Base class of options with a hint for misspelt names."""

from __future__ import annotations

from typing import Any, TypeVar

from sagemaker_dist.errors import OptionError, closest, raise_all

T = TypeVar("T", bound="Named")


class Named:
    """Base of a dataclass whose fields are passed by name.

    Raises:
        OptionError: An unknown option is passed; all of them are reported.
    """

    __slots__ = ()

    def __new__(cls: type[T], *_: object, **options: object) -> T:
        """Check the names, before the class's own `__init__` refuses the first unknown one."""
        known: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
        raise_all(
            OptionError(
                f"{cls.__name__} has the option {name!r}",
                "no such option exists",
                closest(name, known),
                about=name,
                kind="unknown",
            )
            for name in options
            if name not in known
        )
        return super().__new__(cls)
