# SPDX-License-Identifier: Apache-2.0
"""The supervisor process of one job: starts its hosts, stops them, saves their results.

The driver is the process that started the job. An attended job is stopped when the driver ends;
other jobs continue. The supervisor sees the end of the driver as EOF on a pipe.

    Starting -> Downloading -> Training -> Uploading -> Completed | Failed | Stopped

Downloading: Only for a job whose data must be copied or downloaded. A request to stop, or EOF, ends
the job.

Training: When a host has failed, the supervisor sends SIGTERM to the other hosts, unless the job is
elastic and at least `elastic_min` of them are left. After 6 s, it kills every host that still runs.
If a rank of another host caused the failure, the supervisor first waits up to 3 s for the report of
that host. In a job with `max_restarts`, a host that was killed is no failure: the supervisor starts
it again, and the launchers restart all ranks. After a request to stop, EOF, or the time limit of
the job, the supervisor sends SIGTERM to all hosts, and SIGKILL 120 s later, as on SageMaker.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import DistError, JobError
from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.local.artifacts import Cancelled, gather
from sagemaker_dist.runners.local.data.channels import Data
from sagemaker_dist.runners.local.fleet import Fleet, Host
from sagemaker_dist.runners.local.host_losses import HostLosses
from sagemaker_dist.runners.local.job_folder import JobFolder, append
from sagemaker_dist.runners.local.job_state import State
from sagemaker_dist.runners.local.late_ranks import with_evidence
from sagemaker_dist.runners.local.opt_ml_tree import MAX_CHARACTERS, Failure
from sagemaker_dist.runners.local.private_input import PrivateInput, take_input
from sagemaker_dist.runners.local.process_fleet import ProcessFleet
from sagemaker_dist.runners.local.process_tree import adopt_orphans, hide_memory
from sagemaker_dist.runners.local.supervisor_watch import start_watch
from sagemaker_dist.runners.local.tree_reader import remove_tree

FAILURE_GRACE_SECONDS: Final = 6.0
_CAUSE_SECONDS: Final = 3.0  # the rank that failed first may end after its peers
STOP_GRACE_SECONDS: Final = 120.0  # "docker stop -t 120", SageMaker Developer Guide
_TICK_SECONDS: Final = 0.1
_RESTARTS_SECONDS: Final = 1.0  # between two reads of the file with the restarts
_KILLED: Final = (128 + signal.SIGKILL, 255)  # exit codes of a container that was killed, or lost
_AGAIN_SECONDS: Final = 5.0  # until the next kill: a busy Docker engine may lose the first


@dataclass(slots=True)
class Supervisor:
    """Program that starts, watches and stops the hosts of one job. Thread safety: none.

    Attributes:
        driver: Read end of a pipe, or None. EOF on the pipe means that the process that started
            the job has ended; the job is then stopped.
        failures: Failures of the hosts that end the job, in the order of their reports.
        losses: Failures of hosts that the job has survived.
        lost: Hosts without which the job went on.
        num_succeeded: Number of hosts that have ended with success, and were not lost.
        stopping: Secondary status with which a job that is being stopped will end, such as
            "MaxRuntimeExceeded"; "" for other jobs.
        killed: Whether the hosts were killed on request.
        stop_others_at: Time on the monotonic clock when the other hosts are stopped, after one
            has failed.
        deadline: Time on the monotonic clock when all hosts are killed.
        signalled: Whether the supervisor received SIGTERM, or EOF on `driver`.
        num_replaced: Number of hosts that were killed and started again.
        read_restarts_at: Time on the monotonic clock when the file of restarts is read next.
    """

    folder: JobFolder
    job: LocalJob
    data: Data
    fleet: Fleet
    driver: int | None
    state: State
    losses: HostLosses = field(default_factory=lambda: HostLosses(None))
    failures: list[Failure] = field(default_factory=list)
    lost: list[Host] = field(default_factory=list)
    num_succeeded: int = 0
    stopping: str = ""
    killed: bool = False
    stop_others_at: float = float("inf")
    deadline: float = float("inf")
    signalled: bool = False
    num_replaced: int = 0
    read_restarts_at: float = 0.0

    def run(self) -> None:
        """Start every host, run the job to its end and write its final state."""
        try:
            self._download()
            hosts = list(self._start())
            self._watch(hosts)
            self.fleet.kill()
            self._note_restarts(hosts, now=float("inf"))
            for host in hosts:
                self._close(host)
            self._clear()
            self._finish(hosts)
        except Cancelled:  # no host has computed anything yet
            self._become("Stopping", "Stopping")
            self._clear()
            remove_tree(self.folder.hosts)
            self._become("Stopped", "Stopped")
        except DistError as error:
            self._clear()
            self._become("Failed", "Failed", str(error)[:MAX_CHARACTERS], error.as_dict())
        except Exception as error:  # the driver must see every failure
            self._clear()
            if not self.state.is_terminal:  # else that state is right, but could not be written
                self._become("Failed", "Failed", f"The supervisor failed: {error!r}")
            raise

    def _clear(self) -> None:
        self.fleet.remove()
        self.data.remove()
        self.folder.remove_secret()

    def _download(self) -> None:
        if self.data.is_fetched:
            self._become("InProgress", "Downloading")
            self.data.fetch(self._log, self._check_driver)

    def _start(self) -> Sequence[Host]:
        self.folder.checkpoints(self.job).mkdir(parents=True, exist_ok=True)
        started = self.fleet.start()
        self._check_driver()  # no grace period for a stop before this: nothing was computed
        self.data.feed()
        self._become("InProgress", "Training")
        return started

    def _watch(self, hosts: list[Host]) -> None:
        began, running = time.monotonic(), list(hosts)
        with selectors.DefaultSelector() as selector:
            for host in hosts:
                selector.register(host, selectors.EVENT_READ, host)
            if self.driver is not None:
                selector.register(self.driver, selectors.EVENT_READ)
            while running:
                for key, _ in selector.select(_TICK_SECONDS):
                    self._handle_event(key, selector)
                self._check_limits(running, time.monotonic() - began)
                self._replace_killed(hosts, running, selector)
                running = self._remove_ended(running)
                self._note_restarts(hosts, time.monotonic())
                if time.monotonic() > self.deadline:
                    self.fleet.kill()
                    self.deadline = time.monotonic() + _AGAIN_SECONDS

    def _handle_event(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        host: Host | None = key.data
        if host is not None:
            if not host.output.read():
                selector.unregister(host)
        elif not os.read(key.fd, 1):  # EOF, because the driver writes nothing
            selector.unregister(key.fd)
            self.signalled = True

    def _check_limits(self, running: list[Host], elapsed_seconds: float) -> None:
        request = self.folder.stop_request()
        if request in {"kill", "drop"}:
            self.killed = True
            self._stop(running, "Stopped", grace_seconds=0.0)
        elif not self.stopping and not self.failures:
            if fault := self.data.fault():
                self._fail(Failure(text=fault))
            elif request or self.signalled:
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
        codes = [host.poll() for host in running]
        alive = [host for host, code in zip(running, codes, strict=True) if code is None]
        for host, code in zip(running, codes, strict=True):
            if code == 0 and not host.tree.loss():
                self.num_succeeded += 1
        for host, code in zip(running, codes, strict=True):
            if code and not self.stopping:
                self._note_failure(host, code, len(alive) + self.num_succeeded)
        if time.monotonic() >= self.stop_others_at and self.deadline == float("inf"):
            self.deadline = time.monotonic() + FAILURE_GRACE_SECONDS
            for host in alive:
                host.terminate()
        return alive

    def _replace_killed(
        self, hosts: list[Host], running: list[Host], selector: selectors.BaseSelector
    ) -> None:
        """Start hosts again that were killed, in `hosts` and in `running`, if the job allows it."""
        for index, host in enumerate(running):
            code = host.poll()
            if code is None or not self._is_replaced(host, code):
                continue
            with contextlib.suppress(KeyError):  # the end of its output has been read
                selector.unregister(host)
            self._close(host)
            self.num_replaced += 1
            self._log(f"{host.ending(code).rstrip('.')}. {host.place.label} is started again")
            try:
                other = self.fleet.replace(host)
            except (DistError, OSError) as error:
                self._log(f"{host.place.label} cannot be started again: {error}")
                self.num_replaced = self.job.max_restarts
                return
            selector.register(other, selectors.EVENT_READ, other)
            running[index] = hosts[hosts.index(host)] = other

    def _is_replaced(self, host: Host, code: int) -> bool:
        """Return whether a host that ended with `code` was killed, and is started again."""
        was_killed = (code < 0 or code in _KILLED) and not host.tree.failure()
        is_running = not (self.stopping or self.failures or self.signalled)
        within = self.job.replaces_hosts and self.num_replaced < self.job.max_restarts
        return was_killed and is_running and within and not self.folder.stop_request()

    def _close(self, host: Host) -> None:
        """Copy the rest of a host's output, and note how much of all of it was lost."""
        host.close()
        lost = self.state.lost_log_bytes + host.output.num_lost
        self.state = replace(self.state, lost_log_bytes=lost)

    def _note_restarts(self, hosts: Sequence[Host], now: float) -> None:
        """Take the restarts into the job's state that the first host has written."""
        if not self.job.max_restarts or now < self.read_restarts_at:
            return
        self.read_restarts_at = now + _RESTARTS_SECONDS
        restarts = hosts[0].tree.restarts()
        if restarts and restarts != self.state.restarts:
            self.state = replace(self.state, restarts=restarts)
            with contextlib.suppress(OSError):  # a full disk must not end a training that runs
                self.folder.write_state(self.state)

    def _note_failure(self, host: Host, code: int, num_left: int) -> None:
        ended = {"host": host.place.label, "exit_code": code if code >= 0 else 128 - code}
        failure = Failure(
            text=host.tree.failure(),
            ending=host.ending(code),
            was_stopped=host.was_stopped,
            fields={**ended, **host.tree.failure_fields()},
        )
        if self.failures or not self.losses.survives(failure, num_left):
            self._fail(failure)
            return
        self._log(f"lost {host.place.label}; the job goes on without it: {failure.reason}")
        self._lose(host, failure.reason)

    def _lose(self, host: Host, why: str) -> None:
        self.lost.append(host)
        self.state = self.state.lose(f"{host.place.label}: {why}")

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        seconds = _CAUSE_SECONDS if failure.is_secondary else 0.0
        self.stop_others_at = min(self.stop_others_at, time.monotonic() + seconds)

    def _finish(self, hosts: Sequence[Host]) -> None:
        self._become(self.state.status, "Uploading")
        for host in hosts:
            if why := host.tree.loss():
                self._lose(host, why)
        kept = hosts if self.failures else [host for host in hosts if host not in self.lost]
        trees = [each.tree for each in kept]
        self.failures = [
            replace(each, fields=with_evidence(each.fields, trees)) for each in self.failures
        ]
        try:
            gather(self.folder, self.job, trees, self._log, self._check_cancelled)
        except Cancelled:
            files = f"the hosts' files are in {self.folder.hosts}"
            self._log(f"no model was saved: the job was stopped before that; {files}")
            self._become("Stopped", "Stopped")
            return
        except (OSError, ValueError, JobError) as error:
            place = f"The hosts' files are kept in {self.folder.hosts}."
            unwritten = f"The model could not be written: {str(error).rstrip('.')}. {place}"
            fields = error.as_dict() if isinstance(error, JobError) else {}
            cause = Failure(fields=fields)
            if self.failures:
                cause = self.losses.cause(self.failures)
            reason = f"{cause.reason} {unwritten}" if cause.reason else unwritten
            self._become("Failed", "Failed", reason, cause.fields)
            return
        if self.failures:
            for tree in trees:
                tree.keep_code()  # tracebacks in the log refer to it
        else:
            remove_tree(self.folder.hosts)
        if self.failures:
            cause = self.losses.cause(self.failures)
            self._become("Failed", "Failed", cause.reason, cause.fields)
        elif self.stopping:
            self._become("Stopped", self.stopping)
        else:
            self._become("Completed", "Completed")

    def _check_cancelled(self) -> None:
        """Raise Cancelled if the job must end without a model.

        This is so if the job was stopped or killed while no host was running, or if the user
        requested to discard the model. A job that was stopped or killed while its hosts were
        running still saves its model. After a failure of a host, Cancelled is never raised.
        """
        if self.failures:
            return
        request = self.folder.stop_request()
        is_late = request == "kill" and not self.killed
        if request == "drop" or is_late or (not self.stopping and (request or self.signalled)):
            raise Cancelled

    def _check_driver(self) -> None:
        """Raise Cancelled if the job was stopped before the training began.

        Possible causes are a request of the user, SIGTERM to this process, and EOF on `driver`.
        """
        if self.driver is not None and select.select([self.driver], [], [], 0)[0]:
            self.signalled = True  # EOF, because the driver writes nothing
        self._check_cancelled()

    def _become(
        self,
        status: str,
        secondary: str,
        reason: str | None = None,
        cause: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = self.state.become(status, secondary, reason, cause)
        try:
            self.folder.write_state(self.state)
        except OSError:
            if self.state.is_terminal:  # a full disk must not end a training that still runs
                raise

    def _log(self, text: str) -> None:
        append(self.folder.all_log, f"[sagemaker-dist] {text}\n".encode(errors="backslashreplace"))


def main() -> None:
    """Run the job whose folder is given on the command line, in a process of its own.

    The process that LocalRunner started forks two children and exits at once. The first one runs
    the job; the second one watches the first.
    """
    parser = argparse.ArgumentParser(description="Supervises one job of sagemaker_dist.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--driver", type=int, help="read end of the driver's pipe")
    arguments = parser.parse_args()
    hide_memory()
    private = PrivateInput.decode(take_input())
    folder = JobFolder(arguments.folder)
    job = replace(folder.job(), environment=dict(private.environment))
    alive, held = os.pipe()  # closed by the end of the child that runs the job
    if child := os.fork():
        os.close(held)
        start_watch(child, alive, folder.all_log)
        os._exit(0)  # the driver waits only for this process
    os.close(alive)
    adopt_orphans()
    data = Data(folder, job, private.downloads)
    fleet = _fleet(folder, job, data)
    losses = HostLosses(job.elastic_min)
    supervisor = Supervisor(folder, job, data, fleet, arguments.driver, folder.state(), losses)
    signal.signal(signal.SIGTERM, lambda *_: setattr(supervisor, "signalled", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run()


def _fleet(folder: JobFolder, job: LocalJob, data: Data) -> Fleet:
    if not job.in_containers:
        return ProcessFleet(folder, job, data)
    from sagemaker_dist.runners.local.containers.container_fleet import (
        ContainerFleet,  # imports docker-py
    )

    return ContainerFleet(folder, job, data)


if __name__ == "__main__":
    main()
