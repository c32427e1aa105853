# SPDX-License-Identifier: Apache-2.0
"""What a program writes to a terminal."""

import os
import pty
import re
import subprocess
from collections.abc import Mapping, Sequence


def shown_in_a_terminal(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """All that it wrote, escape codes included, with the ends of lines that it meant."""
    ours, theirs = pty.openpty()
    said = b""
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, **variables}) as process:
        os.close(theirs)
        try:
            while data := os.read(ours, 4096):
                said += data
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode().replace("\r\n", "\n")


def without_codes(text: str) -> str:
    """The letters alone."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
