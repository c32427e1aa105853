# SPDX-License-Identifier: Apache-2.0
"""Program that runs one TensorFlow server of a job, a "worker" or a "ps" in TF_CONFIG.

    python -m smdist.dataparallel.task_server "algo-2 worker 1" 10.0.0.1:7777 600

The arguments are the server's name, the address of the task starter on the first host, and the
seconds to wait until the starter accepts a connection. The task starter is the program that
starts the TensorFlow processes of a host, among them the script.

The launcher starts these servers for `parameter_server`. A TensorFlow server never ends by
itself. This process ends when the task starter sends the script's result, and fails if the
connection to the task starter is lost. It ignores SIGTERM and SIGINT: the script handles these
signals and may need the servers to save its state.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Final

from sagemaker_dist.errors import LaunchError
from smdist.config import read_rank_config, read_secret_variables
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.dataparallel.task_server_protocol import ENDED, FAILED, MAX_LINE, Greeting, watch_host

_PAUSE_SECONDS: Final = 0.1
_CONNECT_SECONDS: Final = 5.0
_GREET_SECONDS: Final = 30.0  # the starter may be starting processes meanwhile


class _ForeignError(Exception):
    """Raised when the process at the task starter's address does not have the job's secret."""


def main() -> int:
    """Run a TensorFlow server until the training script on the first host has ended.

    Return 0 if the script succeeded. Otherwise, also if the first host was lost, return 1.
    """
    name, place, timeout = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    host, _, port = place.rpartition(":")
    try:
        secret = read_secret(*read_secret_variables()) or b""
        starter = _connect(host, int(port), float(timeout), Greeting(secret, name))
    except LaunchError as error:
        return _fail(str(error))
    except _ForeignError:
        return _fail(
            f"the task starter of the first host at {place} does not have the secret of this host:"
            " SMDIST_SECRET_FILE differs, or another program uses the port"
        )
    except OSError as error:
        why = error.strerror or error
        return _fail(f"no connection to the task starter of the first host at {place}: {why}")
    with starter:
        server = _serve()
        result = _wait(starter)
    del server
    if result.startswith(ENDED):
        return 0
    if result.startswith(FAILED):
        return _fail("the script failed")
    return _fail("the connection to the first host was lost")


def _serve() -> object:
    """Start the TensorFlow server and return it; its threads run until this process ends."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )


def _connect(host: str, port: int, timeout_seconds: float, greeting: Greeting) -> socket.socket:
    """Connect to the task starter, retrying until it has greeted, and return the connection.

    Raises:
        OSError: The starter did not greet in time.
        _ForeignError: The process at this address does not have the job's secret.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            starter = _greet(socket.create_connection((host, port), _CONNECT_SECONDS), greeting)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
            continue
        starter.settimeout(None)
        watch_host(starter, read_rank_config().silence_seconds)
        return starter


def _greet(starter: socket.socket, greeting: Greeting) -> socket.socket:
    try:
        starter.settimeout(_GREET_SECONDS)
        starter.sendall(greeting.server_line())
        line = b""
        while not line.endswith(b"\n") and len(line) < MAX_LINE:
            part = starter.recv(MAX_LINE - len(line))
            if not part:
                raise ConnectionResetError("the task starter has closed the connection")
            line += part
        answer = greeting.proof_line(line)
        if answer is None:
            raise _ForeignError
        starter.sendall(answer)
    except BaseException:
        starter.close()
        raise
    return starter


def _wait(starter: socket.socket) -> bytes:
    try:
        return starter.recv(MAX_LINE)
    except OSError:
        return b""


def _fail(why: str) -> int:
    sys.stderr.write(f"PeerError: {why}\n")
    return 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # sys.exit would wait for the server's threads, which never end
