# SPDX-License-Identifier: Apache-2.0
"""Names of horovod.torch that smdist does not have, with the reason and a replacement for each."""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

# pairs (why, hint)
REFUSED: Final = MappingProxyType(
    {
        "check_extension": (
            "there is one engine, without extensions to choose",
            "Remove the check from the script",
        ),
    }
)


def no_such_name(module: str, name: str, names: list[str]) -> AttributeError:
    """Return the AttributeError for a name that the module does not have.

    It contains the reason and a replacement for a name of Horovod, else the most similar of
    `names`, if there is one.
    """
    what = f"module {module!r} has no attribute {name!r}"
    if name in REFUSED:
        why, hint = REFUSED[name]
        return AttributeError(f"{what}: {why}. {hint}.")
    near = get_close_matches(name, names, n=1)
    return AttributeError(f"{what}. Did you mean {near[0]!r}?" if near else what)
