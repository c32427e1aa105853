# SPDX-License-Identifier: Apache-2.0
"""One host as a Docker container: its output, its signals and its end.

    engine ──▶ output ──▶ a thread ──▶ pipe ──▶ the supervisor's selector
    engine ──▶ exit status ──▶ a thread ──▶ `ContainerHost.code`, once all output is copied

An engine on a busy machine may lose a request, or the end of a stream. Therefore SIGTERM is sent
again until the engine accepts it, and a container that has ended needs no end of its stream.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from docker.errors import APIError, DockerException
from requests.exceptions import ConnectionError as RequestConnectionError
from requests.exceptions import ReadTimeout, RequestException
from urllib3.exceptions import ReadTimeoutError

from sagemaker_dist.packaging.docker_engine import Engine
from sagemaker_dist.planning import LocalHost
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.output import Output

if TYPE_CHECKING:
    from docker.models.containers import Container

BROKEN: Final = (DockerException, RequestException, OSError)  # errors of a request to the engine
_STARTUP_SECONDS: Final = 2.0  # time for Python to start and install its signal handlers
_LOST: Final = 255  # exit status if the engine no longer knows the container's
_AGAIN_SECONDS: Final = 1.0  # until a request that has failed is sent again
_SILENT_SECONDS: Final = 10.0  # until the stream of a container that has ended is closed
_WAIT_SECONDS: Final = 20.0  # until the exit status is requested again
_ENDED: Final = (404, 409)  # HTTP: no such container, or it does not run


@dataclass(slots=True)
class ContainerHost:
    """A host of a local job that runs in a container.

    The supervisor's selector reads the pipe with the container's output. Thread safety: a thread
    of `follow` writes `lost`, and then `code`; only the supervisor reads them.

    Attributes:
        code: Exit status; None while the container runs.
        lost: Why the engine could not report the exit status, or "".
        started_seconds: Time of the start on the monotonic clock.
    """

    place: LocalHost
    tree: HostTree
    output: Output
    container: Container
    engine: Engine
    was_stopped: bool = False
    code: int | None = None
    lost: str = ""
    closed: bool = False
    started_seconds: float = field(default_factory=time.monotonic)

    def fileno(self) -> int:
        """Return the file descriptor of the host's output, the read end of the pipe."""
        return self.output.source

    def poll(self) -> int | None:
        """Return the exit status of the container, or None while it runs."""
        return self.code

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process, as `docker stop` does, without waiting.

        If the container is younger than two seconds, the signal is sent when it reaches that age:
        Linux drops a signal to a first process that has no handler for it yet.
        """
        self.was_stopped = True
        threading.Thread(target=self._terminate, daemon=True).start()

    def _terminate(self) -> None:
        time.sleep(max(0.0, self.started_seconds + _STARTUP_SECONDS - time.monotonic()))
        while self.code is None and not self._signal("SIGTERM"):
            time.sleep(_AGAIN_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to every process of the container."""
        self._signal("SIGKILL")

    def follow(self, stream: Any, sink: int) -> list[threading.Thread]:
        """Start the threads that copy the container's output and wait for its end; return them.

        Args:
            stream: Output of the container, as docker-py's `attach` returns it.
            sink: Write end of the pipe for the output; the first thread closes it.
        """
        copy = OutputCopy(stream, sink)
        end = threading.Thread(target=self._follow_end, args=(copy,), daemon=True)
        end.start()
        return [copy.thread, end]

    def _follow_end(self, copy: OutputCopy) -> None:
        try:
            code = _wait(self.container)
        except Exception as error:
            self.lost = " ".join(str(error).split())
            code = _LOST
        copy.finish()
        self.code = code

    def close(self) -> None:
        """Write the rest of the output to the logs and close the pipe; later calls do nothing."""
        if not self.closed:
            self.closed = True
            self.output.drain()
            os.close(self.output.source)

    def ending(self, code: int) -> str:
        """Return a sentence on how the container ended, with its exit status or the likely cause.

        `code` is the exit status that `poll` returned.
        """
        container = f"The container of {self.place.label}"
        if self.lost:
            return f"The Docker engine lost the container of {self.place.label}: {self.lost}."
        if code == 128 + signal.SIGKILL:
            return f"{container} was killed by SIGKILL.{self._memory_hint()}"
        if code in {1, 255} and self._is_foreign():
            return (
                f"{container} could not run: its image is built for {self._image_architecture()},"
                f" but this machine's processor is {self.engine.architecture}."
                " Build the image on this machine: sagemaker-dist image build."
            )
        return f"{container} exited with code {code} and gave no reason."

    def _signal(self, name: str) -> bool:
        """Send a signal to the container; return False if the engine did not accept it."""
        try:
            self.container.kill(signal=name)
        except APIError as error:
            return error.status_code in _ENDED
        except BROKEN:  # the engine is busy, or has stopped
            return False
        return True

    def _memory_hint(self) -> str:
        with contextlib.suppress(*BROKEN):
            self.container.reload()
            if self.container.attrs["State"].get("OOMKilled"):
                return " It ran out of memory."
        return " It may have run out of memory, or was killed by a user."

    def _image_architecture(self) -> str:
        with contextlib.suppress(*BROKEN):
            image = self.container.image
            return str(image.attrs["Architecture"]) if image else self.engine.architecture
        return self.engine.architecture

    def _is_foreign(self) -> bool:
        return self._image_architecture() != self.engine.architecture


class OutputCopy:
    """Copy of a container's output into a pipe, by a thread.

    Thread safety: one other thread may call `finish`.

    Args:
        stream: Output of the container, as docker-py's `attach` returns it.
        sink: Write end of the pipe; the thread closes it.
    """

    def __init__(self, stream: Any, sink: int) -> None:
        self._stream = stream
        self._sink = sink
        self._waits_since: float | None = time.monotonic()  # None while it writes
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Wait until all output of a container that has ended is copied.

        If the engine then sends nothing for 10 s, not even the end of the stream, the stream is
        closed. There is no limit for a reader of the pipe that is late.
        """
        ended = time.monotonic()
        while self.thread.is_alive():
            self.thread.join(_AGAIN_SECONDS)
            since = self._waits_since
            if since is not None and time.monotonic() - max(since, ended) > _SILENT_SECONDS:
                with contextlib.suppress(*BROKEN):
                    self._stream.close()
                self.thread.join(_AGAIN_SECONDS)
                return

    def _run(self) -> None:
        try:
            for data in self._stream:
                self._waits_since = None
                self._write(data)
                self._waits_since = time.monotonic()
        except BROKEN:  # the supervisor has closed the pipe, or the engine has stopped
            return
        finally:
            os.close(self._sink)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._sink, view) :]


def _wait(container: Container) -> int:
    """Wait until a container has ended, and return its exit status.

    Raises:
        docker.errors.APIError: The engine does not know the container.
        requests.exceptions.RequestException: The engine does not answer.
    """
    while True:
        try:
            return int(container.wait(timeout=_WAIT_SECONDS)["StatusCode"])
        except ReadTimeout:  # no part of an answer has come: the container may still run
            continue
        except RequestConnectionError as error:
            if not isinstance(error.__context__, ReadTimeoutError):  # the rest of one is missing
                raise
