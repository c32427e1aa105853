# SPDX-License-Identifier: Apache-2.0
"""TensorFlow server for one task of a cluster, "worker" or "ps" in TF_CONFIG.

    python -m smdist.dataparallel.task_server "algo-2 worker 1" 10.0.0.1:7777 600

The launcher starts these servers for `parameter_server`. A TensorFlow server never ends on
its own. This process ends when the launcher on the first host reports how the script ended,
and fails when that host is lost. It ignores SIGTERM and SIGINT, because the script handles
them and may need the servers to save its state.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Final

from smdist.dataparallel.task_server_protocol import ENDED, FAILED, HELLO, MAX_LINE

_PAUSE_SECONDS: Final = 0.1
_DIAL_SECONDS: Final = 5.0


def main() -> int:
    """Serve until the script has ended; return 0 if the script succeeded, else 1."""
    name, place, patience = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    host, _, port = place.rpartition(":")
    try:
        bell = _dial(host, int(port), float(patience))
    except OSError as error:
        return _fail(f"the first host {place} does not answer: {error.strerror or error}")
    with bell:
        bell.sendall(f"{HELLO}{name}\n".encode())
        server = _serve()
        heard = _wait(bell)
    del server
    if heard.startswith(ENDED):
        return 0
    return _fail("the script failed" if heard.startswith(FAILED) else "the first host is gone")


def _serve() -> object:
    """Start the server and return it; its threads run until this process ends."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )


def _dial(host: str, port: int, patience_seconds: float) -> socket.socket:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            bell = socket.create_connection((host, port), timeout=_DIAL_SECONDS)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
            continue
        bell.settimeout(None)
        # detects a host that lost its power
        bell.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10)):
            bell.setsockopt(socket.IPPROTO_TCP, option, seconds)
        return bell


def _wait(bell: socket.socket) -> bytes:
    try:
        return bell.recv(MAX_LINE)
    except OSError:
        return b""


def _fail(why: str) -> int:
    sys.stderr.write(f"PeerError: {why}\n")
    return 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # os._exit, because the server's threads never end by themselves
