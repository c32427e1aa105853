# SPDX-License-Identifier: Apache-2.0
"""The script's command line as a log may show it: on one line, without what looks secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from smdist.launch.environment import script_arguments

Spell = Callable[[Mapping[str, Any]], list[str]]

_PRIVATE: Final = re.compile(
    r"(?:^|[_.-])(?:secret|passwo?r?d|pwd|passphrase|token|credential"
    r"|(?:api|access|private|secret)[_.-]?key)s?$",
    re.IGNORECASE,
)
_PRIVATE_FIRST: Final = re.compile(r"(?:secret|passwo?r?d|pwd|passphrase)s?[_.-]", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(?<=://)[^/\s\"']*@")  # of a URI


def shown_command(
    program: str, hyperparameters: Mapping[str, Any], spell: Spell = script_arguments
) -> str:
    """The call as a shell would take it."""
    values = {name: _masked(name, value) for name, value in hyperparameters.items()}
    return _one_line(without_login(shlex.join([program, *spell(values)])))


def without_login(text: str) -> str:
    """A message about a URI without the user and password in it."""
    return _LOGIN.sub("***@", text)


def _masked(name: str, value: Any) -> Any:
    """What has a name that says it is nobody's business; max_tokens=512 stays."""
    if isinstance(value, Mapping):
        return {key: _masked(str(key), part) for key, part in value.items()}
    is_counted = isinstance(value, (bool, int, float)) or value in (None, "", [], ())
    return value if is_counted or not _is_private(name) else "***"


def _is_private(name: str) -> bool:
    """By its last word, or its first: wandbApiKey, db_password, password_db."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return bool(_PRIVATE.search(words) or _PRIVATE_FIRST.match(words))


def _one_line(text: str) -> str:
    """What would break the line, colour or turn it, as Python spells it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
