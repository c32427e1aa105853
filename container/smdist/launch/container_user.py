# SPDX-License-Identifier: Apache-2.0
"""User name and home directory for containers that run as a number without either.

pip installs into HOME for a user who may not write to the image; torch's compiler names its
cache after the user.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_NAMES = (
    "LOGNAME",
    "USER",
    "LNAME",
    "USERNAME",
)  # the variables that getpass.getuser() reads first


def account_environment(inherited: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return HOME and a user name, where this container lacks a usable one.

    A new home is made below `directory` and is removed with it.
    """
    variables: dict[str, str] = {}
    if not _is_writable(inherited.get("HOME") or _known_home()):
        home = directory / "home"
        home.mkdir()
        variables["HOME"] = str(home)
    if not any(inherited.get(name) for name in _NAMES) and _entry() is None:
        variables |= dict.fromkeys(("LOGNAME", "USER"), f"user{os.getuid()}")
    return variables


def _entry() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _known_home() -> str:
    entry = _entry()
    return entry.pw_dir if entry else ""


def _is_writable(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK) if path else False
