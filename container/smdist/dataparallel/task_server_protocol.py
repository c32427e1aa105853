# SPDX-License-Identifier: Apache-2.0
"""Messages between TensorFlow servers (`task_server`) and the task starter on the first host.

The task starter (`task_starter`) is the program that starts a host's TensorFlow processes.

server                                        starter
├── smdist server NONCE algo-2 ps 1  ──▶  random text, and the name of the server
◀── smdist starter NONCE PROOF       ──┤  random text, and proof that the starter has the secret
├── smdist proof PROOF               ──▶  proof that the server has the secret; it is connected
◀── ended, or failed                 ──┤  result of the script, once it has ended

Each message is a line. A proof is an HMAC of both random texts and the server's name, keyed by
the job's secret. A job without a secret uses an empty key, which protects from nothing.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import Final

SERVER: Final = "smdist server "
STARTER: Final = "smdist starter "
PROOF: Final = "smdist proof "
ENDED: Final = b"ended\n"
FAILED: Final = b"failed\n"
MAX_LINE: Final = 512
_NONCE_BYTES: Final = 16
_PROBES_PER_SILENCE: Final = 12  # keepalive packets to an idle host in its time limit


def watch_host(connection: socket.socket, silence_seconds: int) -> None:
    """Let a TCP connection fail once the other host has answered nothing for `silence_seconds`.

    The kernel sends a packet to an idle host in every twelfth of that time, so that an interruption
    of up to eleven of them does not end a connection that was idle before.
    """
    interval = max(silence_seconds // _PROBES_PER_SILENCE, 1)
    probes = max(silence_seconds // interval - 1, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, silence_seconds - probes * interval),
        (socket.TCP_KEEPINTVL, interval),
        (socket.TCP_KEEPCNT, probes),
        (socket.TCP_USER_TIMEOUT, 1000 * silence_seconds),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Greeting:
    """Greeting of one connection, on either side; proves that both sides have the secret.

    Attributes:
        name: Name of the TensorFlow server, such as "algo-2 ps 1"; "" until the starter knows it.
    """

    def __init__(self, secret: bytes, name: str = "") -> None:
        self._secret = secret
        self._server_nonce = ""
        self._starter_nonce = ""
        self.name = name

    def server_line(self) -> bytes:
        """Return the server's first line."""
        self._server_nonce = secrets.token_hex(_NONCE_BYTES)
        return f"{SERVER}{self._server_nonce} {self.name}\n".encode()

    def starter_line(self, server_line: bytes) -> bytes | None:
        """Return the starter's reply to the server's first line; None if it is no such line."""
        text = server_line.decode("utf-8", "replace")
        nonce, _, name = text.removeprefix(SERVER).strip().partition(" ")
        if not text.startswith(SERVER) or not nonce or not name:
            return None
        self._server_nonce, self.name = nonce, name
        self._starter_nonce = secrets.token_hex(_NONCE_BYTES)
        return f"{STARTER}{self._starter_nonce} {self._proof('starter')}\n".encode()

    def proof_line(self, starter_line: bytes) -> bytes | None:
        """Return the server's second line; None if the starter's line does not prove the secret."""
        text = starter_line.decode("utf-8", "replace")
        nonce, _, proof = text.removeprefix(STARTER).strip().partition(" ")
        self._starter_nonce = nonce
        if not text.startswith(STARTER) or not self._is_proof(proof, "starter"):
            return None
        return f"{PROOF}{self._proof('server')}\n".encode()

    def is_proven(self, proof_line: bytes) -> bool:
        """Return whether the server's second line proves that the server has the secret."""
        text = proof_line.decode("utf-8", "replace")
        return text.startswith(PROOF) and self._is_proof(text[len(PROOF) :].strip(), "server")

    def _proof(self, role: str) -> str:
        words = (role, self._server_nonce, self._starter_nonce, self.name)
        return hmac.digest(self._secret, "\n".join(words).encode(), "sha256").hex()

    def _is_proof(self, proof: str, role: str) -> bool:
        return hmac.compare_digest(proof.encode(), self._proof(role).encode())
