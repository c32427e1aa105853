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
    r"(?:^|[_.-])(?:secret|passwo?r?d|passphrase|token|credential|api_?key"
    r"|(?:api|access|private|secret)[_.-]?key)s?$",
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(r"(?<=://)[^/\s\"']*@")  # of a URI


def shown_command(
    program: str, hyperparameters: Mapping[str, Any], spell: Spell = script_arguments
) -> str:
    """The call as a shell would take it."""
    values = {name: _masked(name, value) for name, value in hyperparameters.items()}
    return _one_line(shlex.join([program, *spell(values)]))


def without_login(text: str) -> str:
    """A message about a URI without the user and password in it."""
    return _LOGIN.sub("***@", text)


def _masked(name: str, value: Any) -> Any:
    """Texts whose names say that they are nobody's business; max_tokens=512 stays."""
    return "***" if isinstance(value, str) and value and _PRIVATE.search(name) else value


def _one_line(text: str) -> str:
    """What would break the line, colour or turn it, as Python spells it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
