# SPDX-License-Identifier: Apache-2.0
"""Limits that may only shrink: tests/house/ratchet.toml, with its reader and writer.

    .venv/bin/python tests/support/ratchet.py

lowers every limit to the current number, and never raises one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HOUSE = Path(__file__).parents[1] / "house"
_FILE = _HOUSE / "ratchet.toml"
_WRITE = "TIGHTEN_RATCHET"
LIMITS = tomllib.loads(_FILE.read_text())
WORDS = tomllib.loads((_HOUSE / "words.toml").read_text())
SHARED = tomllib.loads((_HOUSE / "shared_names.toml").read_text())


def at_most(part: str, key: str, found: list[str]) -> None:
    """Fail if there are more offenders than ratchet.toml allows."""
    limit = LIMITS[part][key]
    if _WRITE in os.environ and len(found) < limit:
        quoted = key if re.fullmatch(r"\w+", key) else f'"{key}"'
        old = f"\n{quoted} = {limit}\n"
        text = _FILE.read_text()
        assert text.count(old) == 1, old
        _FILE.write_text(text.replace(old, f"\n{quoted} = {len(found)}\n"))

    shown = "\n  ".join(found)
    assert len(found) <= limit, f"{len(found)} offenders, {limit} allowed ({key}):\n  {shown}"


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-q", str(_HOUSE / "test_words.py")]
    command.append(str(_HOUSE / "test_names.py"))
    sys.exit(subprocess.run(command, env={**os.environ, _WRITE: "1"}).returncode)
