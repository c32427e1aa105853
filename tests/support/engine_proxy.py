# SPDX-License-Identifier: Apache-2.0
"""A proxy of the Docker engine's socket that answers as a busy engine does.

It refuses the first requests for a signal, and holds the end of every stream of output back.
"""

import socket
import threading
from contextlib import suppress
from pathlib import Path

WHY = b'{"message": "the engine is busy"}'
REFUSAL = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%b" % (len(WHY), WHY)


class EngineProxy:
    """Proxy that listens at `path` for clients of the engine at `engine`.

    Attributes:
        num_refused: Number of requests for a signal that were refused.
        num_held: Number of streams of output whose end was held back.
    """

    def __init__(self, path: Path, engine: str, num_refusals: int) -> None:
        self.num_refused = 0
        self.num_held = 0
        self._engine = engine
        self._num_refusals = num_refusals
        self._open: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for each in (self._server, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):  # the server is closed
            while True:
                client, _ = self._server.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                self._open += [client, engine]
                threading.Thread(target=self._requests, args=(client, engine), daemon=True).start()

    def _requests(self, client: socket.socket, engine: socket.socket) -> None:
        is_answered = False
        with suppress(OSError):
            while data := client.recv(1 << 16):
                line = data.split(b"\r\n", 1)[0]
                if b"/kill?" in line and self.num_refused < self._num_refusals:
                    self.num_refused += 1
                    client.sendall(REFUSAL)
                    continue
                engine.sendall(data)
                if not is_answered:
                    is_answered = True
                    answers = (client, engine, b"/attach?" in line)
                    threading.Thread(target=self._answers, args=answers, daemon=True).start()
            engine.shutdown(socket.SHUT_RDWR)

    def _answers(self, client: socket.socket, engine: socket.socket, is_stream: bool) -> None:
        with suppress(OSError):
            while data := engine.recv(1 << 16):
                client.sendall(data)
            if is_stream:
                self.num_held += 1
            else:
                client.shutdown(socket.SHUT_RDWR)
