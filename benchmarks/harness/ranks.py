# SPDX-License-Identifier: Apache-2.0
"""Start and remote calls of the ranks of one peer."""

from __future__ import annotations

import tempfile
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from benchmarks.harness import peers
from benchmarks.harness.hosts import Host

_REPLY_SECONDS = 180.0  # seconds to wait for a reply; a longer wait is a hang


class Ranks:
    """Ranks of one peer, started and ended by a `with` block.

    Attributes:
        peer: `smdist`, `gloo`, `openmpi` or `bare`; with TensorFlow `smdist-tf` or `mirrored`.
        places: The host of each rank.
        tree: Checkout that the ranks run, set up by `make demo`; None: this one.
        name: Name that tells apart groups of one peer which run at the same time.
    """

    def __init__(
        self, peer: str, places: list[Host], tree: Path | None = None, name: str = ""
    ) -> None:
        self.peer = peer
        self.places = places
        self.tree = tree
        self.name = name or peer
        self._calls: list[Connection] = []

    def __enter__(self) -> Ranks:
        self._folder = tempfile.TemporaryDirectory()
        socket_path = str(Path(self._folder.name) / "socket")
        with Listener(socket_path, "AF_UNIX", backlog=len(self.places)) as listener:
            listener._listener._socket.settimeout(_REPLY_SECONDS)  # type: ignore[attr-defined]
            self._processes = peers.start(self.peer, self.places, socket_path, self.tree, self.name)
            calls = [listener.accept() for _ in self.places]
        self._calls = [call for _, call in sorted((call.recv(), call) for call in calls)]
        return self

    def __exit__(self, *_: Any) -> None:
        for call in self._calls:
            call.send(None)
        for process in self._processes:
            try:
                process.wait(20)
            except Exception:
                process.kill()
        self._folder.cleanup()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Call `module:function` on all ranks at the same time and return the results."""
        for call in self._calls:
            call.send((function, arguments))
        return [self._answer(rank) for rank in range(len(self._calls))]

    def _answer(self, rank: int) -> Any:
        if not self._calls[rank].poll(_REPLY_SECONDS):
            for process in self._processes:
                process.kill()
            raise SystemExit(f"rank {rank} of {self.peer} sent no reply for {_REPLY_SECONDS:.0f} s")
        answer, fault = self._calls[rank].recv()
        if fault:
            raise SystemExit(f"rank {rank} of {self.peer} raised:\n{fault}")
        return answer
