# SPDX-License-Identifier: Apache-2.0
"""What people and logs do not get to see: values whose names say that they are secret.

SDK and launcher print command lines and environments by the same rule.
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
    """A value, or *** where its name says it is nobody's business.

    Tables are looked into. Numbers and what is empty stay: max_tokens=512.
    """
    if isinstance(value, Mapping):
        return {key: masked(str(key), part) for key, part in value.items()}
    is_counted = isinstance(value, (bool, int, float)) or value in (None, "", [], ())
    return value if is_counted or not is_private(name) else MASK


def is_private(name: str) -> bool:
    """By its last word, or its first: wandbApiKey, db_password, password_db."""
    words = _HUMP.sub("_", name)
    return bool(_LAST_WORD.search(words) or _FIRST_WORD.match(words))


def without_login(text: str) -> str:
    """A text in which URIs have no user and password."""
    return _LOGIN.sub(f"{MASK}@", text)
