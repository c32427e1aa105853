# SPDX-License-Identifier: Apache-2.0
"""Errors for names that the modules for TensorFlow do not have."""

from __future__ import annotations

import sys
from difflib import get_close_matches


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that the module does not have.

    It contains the most similar name of the module, if there is one.
    """
    what = f"module {module!r} has no attribute {name!r}"
    near = get_close_matches(name, getattr(sys.modules.get(module), "__all__", ()), n=1)
    return AttributeError(f"{what}. Did you mean {near[0]!r}?" if near else what)
