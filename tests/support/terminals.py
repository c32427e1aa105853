# SPDX-License-Identifier: Apache-2.0
"""Output of a program on a terminal."""

import os
import pty
import re
import subprocess
from collections.abc import Mapping, Sequence


def shown_in_a_terminal(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the whole output with escape codes, and with the program's own line ends."""
    ours, theirs = pty.openpty()
    said = b""
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, **variables}) as process:
        os.close(theirs)
        try:
            while data := os.read(ours, 4096):
                said += data
        except OSError:  # Linux reports in this way that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode().replace("\r\n", "\n")


def without_codes(text: str) -> str:
    """Return the text without escape codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
