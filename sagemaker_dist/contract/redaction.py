# SPDX-License-Identifier: Apache-2.0
"""Redaction of secrets in command lines and environments that the SDK and the launcher print.

A value is a secret if its name says so; see `is_private`.
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
_LOGIN: Final = re.compile(r"(?<=://)[^/\s\"']*@")  # of a URI


def masked(name: str, value: Any) -> Any:
    """Return the value, or *** if its name marks a secret.

    Dicts are redacted entry by entry. Numbers and empty values stay: max_tokens=512.
    """
    if isinstance(value, Mapping):
        return {key: masked(str(key), part) for key, part in value.items()}
    is_counted = isinstance(value, (bool, int, float)) or value in (None, "", [], ())
    return value if is_counted or not is_private(name) else MASK


def is_private(name: str) -> bool:
    """Return whether a name marks a secret, by its last or first word: wandbApiKey, db_password,
    password_db.
    """
    words = _HUMP.sub("_", name)
    return bool(_LAST_WORD.search(words) or _FIRST_WORD.match(words))


def without_login(text: str) -> str:
    """Return the text with user and password removed from its URIs."""
    return _LOGIN.sub(f"{MASK}@", text)
