# SPDX-License-Identifier: Apache-2.0
"""The process that runs one job: starts its hosts, ends them all, keeps what they made.

It leaves the driver's session and outlives it. An attended job comes with a
pipe that the driver holds: when its end reads EOF, the driver is gone, however
it went, and the job is stopped.

    Starting -> Downloading -> Training -> Uploading -> Completed | Failed | Stopped
                 |               |  a host failed: SIGTERM to the others, 6 s, SIGKILL to all;
                 |               |  where it only tells of a peer, that one's host has 3 s before
                 |               |  a wish to stop, the driver is gone, or the time is up:
                 |               |  SIGTERM to every launcher, 120 s as on SageMaker, SIGKILL to all
                 |  where data lies elsewhere; a wish to stop, or no driver, ends it at once
"""

from __future__ import annotations

import argparse
import json
import os
import select
import selectors
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import DistError
from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.local.artifacts import Unwanted, gather
from sagemaker_dist.runners.local.data.channels import PRIVATE, Data
from sagemaker_dist.runners.local.family import adopt_orphans
from sagemaker_dist.runners.local.fleet import Fleet, Host
from sagemaker_dist.runners.local.folder import JobFolder, State, append
from sagemaker_dist.runners.local.processes import ProcessFleet
from sagemaker_dist.runners.local.reasons import MAX_CHARACTERS, Failure, choose_reason

FAILURE_GRACE_SECONDS: Final = 6.0
_CAUSE_SECONDS: Final = 3.0  # a rank that failed may end after the peers that it took along
STOP_GRACE_SECONDS: Final = 120.0  # docker stop -t 120, SageMaker developer guide
_TICK_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 5.0  # an engine under load may not carry out the first kill


@dataclass(slots=True)
class Supervisor:
    """Runs one job to its end. Thread safety: none; it has one thread.

    Attributes:
        driver: Read end of the driver's pipe, or None for a detached job.
        killed: The hosts were killed because someone wished it.
        ask_at: When a failure ends the other hosts, on the monotonic clock.
        stopping: Why the job is being stopped, as a secondary status, or "".
        deadline: When everything is killed, on the monotonic clock.
    """

    folder: JobFolder
    job: LocalJob
    data: Data
    fleet: Fleet
    driver: int | None
    state: State
    failures: list[Failure] = field(default_factory=list)
    stopping: str = ""
    killed: bool = False
    ask_at: float = float("inf")
    deadline: float = float("inf")
    signalled: bool = False

    def run(self) -> None:
        """Start every host, see the job through and write down how it ended."""
        try:
            self._download()
            hosts = self._start()
            self._watch(hosts)
            self.fleet.kill()
            for host in hosts:
                host.close()
            self._clear()
            self._finish(hosts)
        except Unwanted:  # before any host had time to compute
            self._become("Stopping", "Stopping")
            self._clear()
            shutil.rmtree(self.folder.hosts, ignore_errors=True)
            self._become("Stopped", "Stopped")
        except DistError as error:
            self._clear()
            self._become("Failed", "Failed", str(error)[:MAX_CHARACTERS])
        except Exception as error:  # whatever it is, the driver must hear of it
            self._clear()
            self._become("Failed", "Failed", f"The supervisor failed: {error!r}")
            raise

    def _clear(self) -> None:
        self.fleet.remove()
        self.data.remove()

    def _download(self) -> None:
        if self.data.is_fetched:
            self._become("InProgress", "Downloading")
            self.data.fetch(self._say, self._check_driver)

    def _start(self) -> Sequence[Host]:
        self.folder.checkpoints(self.job).mkdir(parents=True, exist_ok=True)
        started = self.fleet.start()
        self._check_driver()  # a stop in the meantime needs no patience: nothing was computed
        self.data.feed()
        self._become("InProgress", "Training")
        return started

    def _watch(self, hosts: Sequence[Host]) -> None:
        began, running = time.monotonic(), list(hosts)
        with selectors.DefaultSelector() as selector:
            for host in hosts:
                selector.register(host, selectors.EVENT_READ, host)
            if self.driver is not None:
                selector.register(self.driver, selectors.EVENT_READ)
            while running:
                for key, _ in selector.select(_TICK_SECONDS):
                    self._hear(key, selector)
                self._obey(running, time.monotonic() - began)
                running = self._remove_ended(running)
                if time.monotonic() > self.deadline:
                    self.fleet.kill()
                    self.deadline = time.monotonic() + _AGAIN_SECONDS

    def _hear(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        host: Host | None = key.data
        if host is not None:
            if not host.output.read():
                selector.unregister(host)
        elif not os.read(key.fd, 1):  # the driver writes nothing: this is EOF
            selector.unregister(key.fd)
            self.signalled = True

    def _obey(self, running: list[Host], elapsed_seconds: float) -> None:
        wish = self.folder.wish()
        if wish in {"kill", "drop"}:
            self.killed = True
            self._stop(running, "Stopped", grace_seconds=0.0)
        elif not self.stopping and not self.failures:
            if fault := self.data.fault():
                self._fail(Failure(text=fault, ending=""))
            elif wish or self.signalled:
                self._stop(running, "Stopped", STOP_GRACE_SECONDS)
            elif elapsed_seconds > self.job.max_run_seconds:
                self._stop(running, "MaxRuntimeExceeded", STOP_GRACE_SECONDS)

    def _stop(self, running: list[Host], secondary: str, grace_seconds: float) -> None:
        self.deadline = min(self.deadline, time.monotonic() + grace_seconds)
        if not self.stopping and not self.failures:
            self.stopping = secondary
            self._become("Stopping", "Stopping")
            for host in running:
                host.terminate()

    def _remove_ended(self, running: list[Host]) -> list[Host]:
        alive = []
        for host in running:
            code = host.poll()
            if code is None:
                alive.append(host)
            elif code and not self.stopping:
                self._note_failure(host, code)
        if time.monotonic() >= self.ask_at and self.deadline == float("inf"):
            self.deadline = time.monotonic() + FAILURE_GRACE_SECONDS
            for host in alive:
                host.terminate()
        return alive

    def _note_failure(self, host: Host, code: int) -> None:
        text, ending = host.tree.failure(), host.ending(code)
        self._fail(Failure(text=text, ending=ending, asked=host.asked))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        seconds = _CAUSE_SECONDS if failure.is_secondary else 0.0
        self.ask_at = min(self.ask_at, time.monotonic() + seconds)

    def _finish(self, hosts: Sequence[Host]) -> None:
        self._become(self.state.status, "Uploading")
        trees = [each.tree for each in hosts]
        try:
            gather(self.folder, self.job, trees, self._say, self._check_wanted)
        except Unwanted:
            left = f"what the hosts wrote is in {self.folder.hosts}"
            self._say(f"no model was saved: the job was stopped before it was; {left}")
            self._become("Stopped", "Stopped")
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
        """Raise Unwanted when someone wants the job to end without its model.

        Killing the hosts is not that: what they wrote until then is kept.
        """
        if self.failures:
            return
        wish = self.folder.wish()
        is_late = wish == "kill" and not self.killed
        if wish == "drop" or is_late or (not self.stopping and (wish or self.signalled)):
            raise Unwanted

    def _check_driver(self) -> None:
        """Raise Unwanted as `_check_wanted` does, or when the driver is gone."""
        if self.driver is not None and select.select([self.driver], [], [], 0)[0]:
            self.signalled = True  # it writes nothing: this is EOF
        self._check_wanted()

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
    private = json.loads(os.environ.pop(PRIVATE, "{}"))  # no host inherits it
    folder = JobFolder(arguments.folder)
    job = folder.job()
    if os.fork():
        os._exit(0)  # the driver waits for this one only
    adopt_orphans()
    data = Data(folder, job, private)
    fleet = _fleet(folder, job, data)
    supervisor = Supervisor(folder, job, data, fleet, arguments.driver, folder.state())
    signal.signal(signal.SIGTERM, lambda *_: setattr(supervisor, "signalled", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run()


def _fleet(folder: JobFolder, job: LocalJob, data: Data) -> Fleet:
    if not job.in_containers:
        return ProcessFleet(folder, job, data)
    from sagemaker_dist.runners.local.containers.fleet import ContainerFleet  # imports docker-py

    return ContainerFleet(folder, job, data)


if __name__ == "__main__":
    main()
