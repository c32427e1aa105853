# SPDX-License-Identifier: Apache-2.0
"""The process that runs one job: starts its hosts, ends them all, keeps what they made.

It leaves the driver's session and outlives it. An attended job comes with a
pipe that the driver holds: when its end reads EOF, the driver is gone, however
it went, and the job is stopped.

    Starting -> Training -> Uploading -> Completed | Failed | Stopped
                   |  a host failed: SIGTERM to the others, 6 s, SIGKILL to all
                   |  a wish to stop, the driver is gone, or the time is up:
                   |  SIGTERM to every launcher, 120 s as on SageMaker, SIGKILL to all
"""

from __future__ import annotations

import argparse
import os
import selectors
import shutil
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import DistError
from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.processes.artifacts import Unwanted, gather
from sagemaker_dist.runners.processes.family import adopt_orphans, kill_descendants
from sagemaker_dist.runners.processes.folder import JobFolder, State, append
from sagemaker_dist.runners.processes.launchers import Launcher
from sagemaker_dist.runners.processes.reasons import Failure, choose_reason

FAILURE_GRACE_SECONDS: Final = 6.0
STOP_GRACE_SECONDS: Final = 120.0  # docker stop -t 120, SageMaker developer guide
_TICK_SECONDS: Final = 0.1


@dataclass(slots=True)
class Supervisor:
    """Runs one job to its end. Thread safety: none; it has one thread.

    Attributes:
        driver: Read end of the driver's pipe, or None for a detached job.
        stopping: Why the job is being stopped, as a secondary status, or "".
        deadline: When everything is killed, on the monotonic clock.
    """

    folder: JobFolder
    job: LocalJob
    driver: int | None
    state: State
    failures: list[Failure] = field(default_factory=list)
    stopping: str = ""
    deadline: float = float("inf")
    signalled: bool = False

    def run(self) -> None:
        """Start every host, see the job through and write down how it ended."""
        try:
            launchers = self._start()
            self._watch(launchers)
            kill_descendants()
            for launcher in launchers:
                launcher.close()
            self._finish(launchers)
        except DistError as error:
            kill_descendants()
            self._become("Failed", "Failed", str(error))
        except Exception as error:  # whatever it is, the driver must hear of it
            kill_descendants()
            self._become("Failed", "Failed", f"The supervisor failed: {error!r}")
            raise

    def _start(self) -> list[Launcher]:
        self.folder.checkpoints(self.job).mkdir(parents=True, exist_ok=True)
        port = _free_port()
        started = [Launcher.start(self.folder, self.job, host, port) for host in self.job.hosts]
        self._become("InProgress", "Training")
        return started

    def _watch(self, launchers: list[Launcher]) -> None:
        began, running = time.monotonic(), list(launchers)
        with selectors.DefaultSelector() as selector:
            for launcher in launchers:
                selector.register(launcher, selectors.EVENT_READ)
            if self.driver is not None:
                selector.register(self.driver, selectors.EVENT_READ)
            while running:
                for key, _ in selector.select(_TICK_SECONDS):
                    self._hear(key, selector)
                self._obey(running, time.monotonic() - began)
                running = self._remove_ended(running)
                if time.monotonic() > self.deadline:
                    kill_descendants()
                    self.deadline = float("inf")

    def _hear(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        if isinstance(key.fileobj, Launcher):
            if not key.fileobj.read():
                selector.unregister(key.fileobj)
        elif not os.read(key.fd, 1):  # the driver writes nothing: this is EOF
            selector.unregister(key.fd)
            self.signalled = True

    def _obey(self, running: list[Launcher], elapsed_seconds: float) -> None:
        wish = self.folder.wish()
        if wish == "kill":
            self._stop(running, "Stopped", grace_seconds=0.0)
        elif not self.stopping and not self.failures:
            if wish or self.signalled:
                self._stop(running, "Stopped", STOP_GRACE_SECONDS)
            elif elapsed_seconds > self.job.max_run_seconds:
                self._stop(running, "MaxRuntimeExceeded", STOP_GRACE_SECONDS)

    def _stop(self, running: list[Launcher], secondary: str, grace_seconds: float) -> None:
        self.deadline = min(self.deadline, time.monotonic() + grace_seconds)
        if not self.stopping and not self.failures:
            self.stopping = secondary
            self._become("Stopping", "Stopping")
            for launcher in running:
                launcher.terminate()

    def _remove_ended(self, running: list[Launcher]) -> list[Launcher]:
        alive = []
        for launcher in running:
            code = launcher.process.poll()
            if code is None:
                alive.append(launcher)
            elif code and not self.stopping:
                self._note_failure(launcher, code)
        if self.failures and self.deadline == float("inf"):
            self.deadline = time.monotonic() + FAILURE_GRACE_SECONDS
            for launcher in alive:
                launcher.terminate()
        return alive

    def _note_failure(self, launcher: Launcher, code: int) -> None:
        label, text = launcher.host.label, launcher.tree.failure()
        self.failures.append(Failure(host=label, exit_code=code, text=text, asked=launcher.asked))

    def _finish(self, launchers: list[Launcher]) -> None:
        self._become(self.state.status, "Uploading")
        trees = [each.tree for each in launchers]
        try:
            gather(self.folder, self.job, trees, self._say, self._check_wanted)
        except Unwanted:
            self._become("Stopped", "Stopped")  # the trees hold what was not written
            return
        except (OSError, ValueError) as error:
            kept = f"Everything the hosts wrote is kept in {self.folder.hosts}."
            unwritten = f"The model could not be written: {error}. {kept}"
            causes = [choose_reason(self.failures)] if self.failures else []
            self._become("Failed", "Failed", " ".join([*causes, unwritten]))
            return
        if self.failures:
            for tree in trees:
                tree.keep_code()  # tracebacks in the log point there
        else:
            shutil.rmtree(self.folder.hosts, ignore_errors=True)
        if self.failures:
            self._become("Failed", "Failed", choose_reason(self.failures))
        elif self.stopping:
            self._become("Stopped", self.stopping)
        else:
            self._become("Completed", "Completed")

    def _check_wanted(self) -> None:
        """Raise Unwanted when someone stopped the job, or killed one that was stopping."""
        if self.failures:
            return
        wish = self.folder.wish()
        if wish == "kill" or (not self.stopping and (wish or self.signalled)):
            raise Unwanted

    def _become(self, status: str, secondary: str, reason: str | None = None) -> None:
        self.state = self.state.become(status, secondary, reason)
        try:
            self.folder.write_state(self.state)
        except OSError:
            if self.state.is_terminal:  # on the way there a full disk ends no training
                raise

    def _say(self, text: str) -> None:
        append(self.folder.all_log, f"[sagemaker-dist] {text}\n".encode())


def main() -> None:
    """Leave the driver, then run the job whose folder is named on the command line."""
    parser = argparse.ArgumentParser(description="Runs one job of sagemaker_dist.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--driver", type=int, help="read end of the driver's pipe")
    arguments = parser.parse_args()
    folder = JobFolder(arguments.folder)
    job = folder.job()
    if os.fork():
        os._exit(0)  # the driver waits for this one only
    adopt_orphans()
    supervisor = Supervisor(folder, job, arguments.driver, folder.state())
    signal.signal(signal.SIGTERM, lambda *_: setattr(supervisor, "signalled", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
