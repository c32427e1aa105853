# SPDX-License-Identifier: Apache-2.0
"""`LocalRunner`: starts supervisors of local jobs and reads their state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any, Final

from sagemaker_dist.errors import JobError, OptionError, SetupError, raise_all
from sagemaker_dist.packaging.docker_engine import connected
from sagemaker_dist.planning import LocalJob, plan_local_job
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.service.hyperparameter_checks import hyperparameter_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.runners.local.data.channels import PRIVATE
from sagemaker_dist.runners.local.job_folder import JobFolder, State
from sagemaker_dist.runners.local.machine_checks import check_setup, sweep_leftovers
from sagemaker_dist.runners.local.output import Segments
from sagemaker_dist.runners.protocol import Description, Request

SUPERVISOR: Final = "sagemaker_dist.runners.local.supervisor"
_POLL_SECONDS: Final = 0.1


def _default_root() -> Path:
    return Path.home() / ".sagemaker-dist" / "jobs"


@dataclass
class LocalRunner:
    """Runs jobs on this machine, as processes or containers.

    Attributes:
        root: Directory with one folder per job.
        environment: Variables only for downloads, such as AWS_ACCESS_KEY_ID: no host and no file
            gets them. An empty value removes the driver's own variable.
    """

    root: Path = field(default_factory=_default_root)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    _pipes: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.root = Path(self.root).absolute()  # the supervisor has another working directory

    def start(self, request: Request, *, attended: bool = False) -> str:
        """Start a supervisor for the job and return the job's name.

        Raises:
            SetupError: This machine lacks the runtime, the Docker engine or the image,
                or the root cannot be written.
            SkewError: SDK and image have different versions.
            OptionError: A job of this name exists, or a hyperparameter cannot reach the script.
        """
        job = plan_local_job(request)
        raise_all(hyperparameter_faults(_terms(job), has_launcher=False))
        check_setup(job)
        folder = self._folder(job.name)
        try:
            folder.create(dict(request), job)
        except FileExistsError:
            raise OptionError(
                f"job_name is {job.name!r}",
                f"a job of this name exists in {self.root}",
                "Pass another name, or leave job_name out",
            ) from None
        except OSError as error:
            raise SetupError(
                f"the folder of job {job.name!r} cannot be written",
                str(error),
                "Pass a writable directory: LocalRunner(root=...)",
            ) from error
        self._launch(folder, job.name, attended)
        return job.name

    def _launch(self, folder: JobFolder, name: str, attended: bool) -> None:
        passed: list[int] = []
        flags: list[str] = []
        try:
            passed.append(folder.lock())
            if attended:
                read_end, self._pipes[name] = os.pipe()
                passed.append(read_end)
                flags = ["--driver", str(read_end)]
            command = [sys.executable, "-m", SUPERVISOR, str(folder.path), *flags]
            with (folder.logs / "supervisor.log").open("wb") as log:
                subprocess.run(
                    command,
                    check=True,
                    cwd=folder.path,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=passed,
                )
        except subprocess.CalledProcessError as error:
            self.release(name)
            raise JobError(
                f"the supervisor of job {name!r} did not start",
                f"it exited with code {error.returncode}",
                f"Read {folder.logs / 'supervisor.log'}",
            ) from error
        except BaseException:  # interrupted: a supervisor may already run
            self.release(name)
            folder.request_stop(now=True)
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def _environment(self) -> dict[str, str]:
        private = {PRIVATE: json.dumps(dict(self.environment))} if self.environment else {}
        return {**os.environ, **private, "PYTHONPATH": _python_path()}

    def release(self, name: str) -> None:
        """Stop attending a job; if it still runs, its supervisor stops it."""
        pipe = self._pipes.pop(name, None)
        if pipe is not None:
            os.close(pipe)

    def exists(self, name: str) -> bool:
        """Return whether a job of this name was ever started here."""
        return (self.root / name).exists()

    def describe(self, name: str) -> Description:
        """Return the answer that DescribeTrainingJob would give."""
        folder = self._existing(name)
        state = folder.state()
        if state.is_terminal and folder.adopt(state) and folder.job().in_containers:
            with suppress(SetupError), connected() as client:
                sweep_leftovers(client)
        if (
            state.status == "InProgress" and folder.stop_request()
        ):  # the supervisor will soon read it
            state = state.become("Stopping", "Stopping")
        return _description(folder.request(), folder.job(), state, folder)

    def stop(self, name: str, *, now: bool = False) -> None:
        """Stop the job; with `now`, kill it, and with a second such call discard its model."""
        folder = self._existing(name)
        if not folder.state().is_terminal:
            folder.request_stop(now=now)

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        """Yield the output of every host, in the order of arrival."""
        folder = self._existing(name)
        segments = Segments()
        with folder.all_log.open("rb") as log:
            if new_only:
                log.seek(0, os.SEEK_END)
            while True:
                over = not follow or folder.state().is_terminal
                while data := log.read(1 << 20):
                    yield from (s.decode(errors="replace") for s in segments.feed(data))
                if over:
                    break
                yield ""
                sleep(_POLL_SECONDS)
        yield from (segment.decode(errors="replace") for segment in segments.close())

    def logs_at(self, name: str) -> str:
        """Return the directory of the logs."""
        return str(self._folder(name).logs)

    def _folder(self, name: str) -> JobFolder:
        return JobFolder(self.root / name)

    def _existing(self, name: str) -> JobFolder:
        if not self.exists(name):
            raise JobError(
                f"there is no job {name!r}",
                f"{self.root} holds no such folder",
                "Check the name, and that the job ran on this machine",
            )
        return self._folder(name)


def _python_path() -> str:
    """Return the driver's PYTHONPATH with absolute paths, and the places of this package and the
    runtime.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    specs = (find_spec("sagemaker_dist"), find_spec("smdist"))
    roots = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
    paths = [str(Path(path).absolute()) for path in (*filter(None, given), *roots)]
    return os.pathsep.join(dict.fromkeys(paths))


def _terms(job: LocalJob) -> Terms:
    """Return the job's encoded hyperparameters, without SageMaker's limits."""
    return Terms(
        hyperparameters=job.hyperparameters,
        runs_script=PROGRAM in job.hyperparameters,
        encodes_json=False,
        is_written=True,
    )


def _description(
    request: dict[str, Any], job: LocalJob, state: State, folder: JobFolder
) -> Description:
    begun = {
        "CreationTime": state.created,
        "TrainingStartTime": state.started,
        "TrainingEndTime": state.ended,
        "LastModifiedTime": state.modified,
    }
    return {
        "HyperParameters": {},
        "InputDataConfig": [],
        "EnableNetworkIsolation": False,
        **request,
        "OutputDataConfig": {"KmsKeyId": "", **request["OutputDataConfig"]},
        "TrainingJobArn": job.arn,
        "TrainingJobStatus": state.status,
        "SecondaryStatus": state.secondary,
        "SecondaryStatusTransitions": _transitions(state),
        "ModelArtifacts": {"S3ModelArtifacts": f"file://{folder.model(job)}"},
        **({"FailureReason": state.reason} if state.reason else {}),
        **{name: _when(at) for name, at in begun.items() if at is not None},
    }


def _transitions(state: State) -> list[dict[str, Any]]:
    ends = [at for _, at in state.transitions[1:]] + [state.ended]
    return [
        {
            "Status": status,
            "StartTime": _when(at),
            **({"EndTime": _when(end)} if end is not None else {}),
        }
        for (status, at), end in zip(state.transitions, ends, strict=True)
    ]


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
