# SPDX-License-Identifier: Apache-2.0
"""Processes forked from a parent that has imported a framework: the import is paid for once.

Importing torch takes 2 CPU seconds and TensorFlow 5. The server imports modules, computes nothing
(so that no thread pool exists yet), and forks a child for each request.
"""

import atexit
import functools
import gc
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

_SPAWN = multiprocessing.get_context("spawn")
_FORK = multiprocessing.get_context("fork")


class Child:
    """A forked process and the parent's end of its pipe."""

    def __init__(self, server: "ForkServer", pid: int, pipe: Connection) -> None:
        self.pid, self.pipe = pid, pipe
        self._server = server

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process still runs after so many seconds."""
        return self._server.ask("wait", self.pid, seconds)

    def abort(self) -> None:
        """Let faulthandler print the stack of every thread, then make sure that it is gone."""
        if self.wait(0) is None:
            self._signal(signal.SIGABRT)
        if self.wait(5) is None:
            self._signal(signal.SIGKILL)
            self.wait(5)

    def _signal(self, number: int) -> None:
        # The server has not reaped it since wait(), so the number is not another's.
        os.kill(self.pid, number)


class ForkServer:
    """Import modules in a process of their own, and fork children from it.

    environ: variables that are set in the server and its children.
    """

    def __init__(self, modules: tuple[str, ...], **environ: str) -> None:
        self._control, theirs = _SPAWN.Pipe()
        # No daemon, because it has children. It ends when this process does: the pipe closes.
        self._process = _SPAWN.Process(target=_serve, args=(theirs, modules, environ))
        self._process.start()
        theirs.close()

    def start(self, serve: Callable[[Connection, int], None], rank: int) -> Child:
        """Fork a child that calls serve(pipe, rank)."""
        ours, theirs = _SPAWN.Pipe()
        pid = self.ask("start", serve, theirs, rank)
        theirs.close()
        return Child(self, pid, ours)

    def ask(self, *request: object) -> int | None:
        """Send a request and return the answer."""
        self._control.send(request)
        return self._control.recv()

    def close(self) -> None:
        """End the server; children whose pipes are open are terminated."""
        self._control.close()
        self._process.join(10)
        self._process.kill()


@functools.cache
def shared_server(modules: tuple[str, ...], **environ: str) -> ForkServer:
    """Return the server of this process with these modules, which ends with the process.

    multiprocessing waits at exit for processes that still run, so the server is closed before.
    """
    server = ForkServer(modules, **environ)
    atexit.register(server.close)
    return server


def _serve(control: Connection, modules: tuple[str, ...], environ: dict[str, str]) -> None:
    os.environ.update(environ)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what was imported is garbage in no child
    children: dict[int, multiprocessing.process.BaseProcess] = {}
    while True:
        try:
            request, *arguments = control.recv()
        except EOFError:
            return
        if request == "start":
            serve, pipe, rank = arguments
            child = _FORK.Process(target=serve, args=(pipe, rank), daemon=True)
            child.start()
            pipe.close()
            children[child.pid] = child
            control.send(child.pid)
        else:
            pid, seconds = arguments
            children[pid].join(seconds)
            control.send(children[pid].exitcode)
