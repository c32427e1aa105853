# SPDX-License-Identifier: Apache-2.0
"""Replacement of secrets by *** in the command lines and environments that are printed.

A value is treated as a secret if its name contains a word such as password; see `is_private`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
_LAST_WORD: Final = re.compile(
    r"(?:^|[_.-])(?:secret|passwo?r?d|pwd|passphrase|token|credential"
    r"|(?:api|access|private|secret)[_.-]?key)s?$",
    re.IGNORECASE,
)
_FIRST_WORD: Final = re.compile(r"(?:secret|passwo?r?d|pwd|passphrase)s?[_.-]", re.IGNORECASE)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LOGIN: Final = re.compile(r"(?<=://)[^/\s\"']*@")  # login of a URI


def masked(name: str, value: Any) -> Any:
    """Return the value, or "***" if `name` marks it as a secret.

    In a dict, each value is replaced if its own key marks it as a secret. Numbers and empty values
    are returned unchanged, so that max_tokens=512 is printed.
    """
    if isinstance(value, Mapping):
        return {key: masked(str(key), part) for key, part in value.items()}
    is_counted = isinstance(value, (bool, int, float)) or value in (None, "", [], ())
    return value if is_counted or not is_private(name) else MASK


def is_private(name: str) -> bool:
    """Return whether the name of a variable or option shows that its value is a secret.

    The first or last word of such a name is a word such as "password". Examples: db_password,
    password_db, wandbApiKey.
    """
    words = _HUMP.sub("_", name)
    return bool(_LAST_WORD.search(words) or _FIRST_WORD.match(words))


def without_login(text: str) -> str:
    """Return the text with *** in place of user and password in each of its URIs."""
    return _LOGIN.sub(f"{MASK}@", text)
