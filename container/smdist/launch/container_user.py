# SPDX-License-Identifier: Apache-2.0
"""User name and home directory for a container whose user ID has neither in /etc/passwd.

Both are needed: pip installs into HOME if the user may not write to the image, and torch's
compiler puts the user's name into the path of its cache.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

# getpass.getuser() reads these variables before /etc/passwd
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def account_environment(inherited: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the variables HOME, LOGNAME and USER that this container needs and does not have.

    HOME is in the result if the user may not write to the present home directory. It then names a
    new directory in `directory`, which the caller removes. LOGNAME and USER are in the result if
    the user has no name. `inherited` is the present environment.
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
