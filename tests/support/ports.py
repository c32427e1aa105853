# SPDX-License-Identifier: Apache-2.0
"""TCP ports for servers of tests, which no other test process and no connection takes meanwhile."""

import fcntl
import random
import socket
import tempfile
from pathlib import Path

# Below the ports from which the kernel chooses for connections and for servers that ask for any.
_FIRST, _END = 10_000, 30_000
_FOLDER = Path(tempfile.gettempdir(), "smdist-test-ports")
_reserved = []  # locked files: each reserves its port until this process ends


def free_port(host="127.0.0.1"):
    """Return a port that is free at an address, reserved among all test processes."""
    _FOLDER.mkdir(exist_ok=True)
    while True:
        port = random.randrange(_FIRST, _END)
        lock = (_FOLDER / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server((host, port)):
                pass
        except OSError:
            lock.close()
            continue
        _reserved.append(lock)
        return port
