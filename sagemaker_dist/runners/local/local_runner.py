# SPDX-License-Identifier: Apache-2.0
"""`LocalRunner`: starts local jobs, each with a supervisor process, and reads their state."""

from __future__ import annotations

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
from typing import Any, BinaryIO, Final

from sagemaker_dist.errors import JobError, OptionError, SetupError, raise_all, require
from sagemaker_dist.packaging.docker_engine import connected
from sagemaker_dist.planning import LocalJob, plan_local_job
from sagemaker_dist.planning.job_faults import JOB_NAME, JOB_NAME_RULE
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.service.hyperparameter_checks import hyperparameter_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.runners.local.artifacts import has_model
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.job_state import State
from sagemaker_dist.runners.local.machine_checks import check_setup, sweep_leftovers
from sagemaker_dist.runners.local.opt_ml_tree import OUTPUT_DATA
from sagemaker_dist.runners.local.output import Segments
from sagemaker_dist.runners.local.private_input import PrivateInput
from sagemaker_dist.runners.local.tree_reader import open_file
from sagemaker_dist.runners.protocol import (
    LOST_LOG_BYTES,
    RESTARTS,
    ROOT_CAUSE,
    Description,
    Request,
)

SUPERVISOR: Final = "sagemaker_dist.runners.local.supervisor"
_POLL_SECONDS: Final = 0.1
_MAX_NAME: Final = 63


def _default_root() -> Path:
    return Path.home() / ".sagemaker-dist" / "jobs"


@dataclass
class LocalRunner:
    """Runner for this machine; hosts of its jobs are processes or Docker containers.

    Attributes:
        root: Directory with one folder per job. Default: ~/.sagemaker-dist/jobs.
        environment: Environment variables for the download of data only, such as
            AWS_ACCESS_KEY_ID. Hosts do not get them, and they are in no file and no environment of
            another process. A variable with an empty value is removed from the environment that
            the download inherits.
    """

    root: Path = field(default_factory=_default_root)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    _pipes: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.root = Path(self.root).absolute()  # the supervisor has another working directory

    def start(self, request: Request, *, attended: bool = False) -> str:
        """Start the job of a request, with a supervisor process, and return the job's name.

        `request` has the fields of CreateTrainingJob. With `attended`, the job is stopped when this
        process ends for any reason.

        Raises:
            SetupError: This machine lacks the runtime, the Docker engine or the image,
                or the directory `root` of this runner cannot be written.
            SkewError: The image does not fit the installed version of sagemaker-dist.
            OptionError: The name is not valid or a job of this name exists, a hyperparameter is
                not valid, or there are fewer GPUs than hosts.
            JobError: The supervisor did not start.
        """
        _check_name(request["TrainingJobName"])
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
                about="job_name",
                kind="conflict",
            ) from None
        except OSError as error:
            raise SetupError(
                f"the folder of job {job.name!r} cannot be written",
                str(error),
                "Pass a writable directory: LocalRunner(root=...)",
                about="root",
            ) from error
        self._launch(folder, job, attended)
        return job.name

    def _launch(self, folder: JobFolder, job: LocalJob, attended: bool) -> None:
        name = job.name
        private = PrivateInput(environment=job.environment, downloads=self.environment)
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
                    env={**os.environ, "PYTHONPATH": _python_path()},
                    input=private.encoded(),
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
        except BaseException:  # such as Ctrl-C: a supervisor may already run
            self.release(name)
            folder.request_stop(now=True)
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def release(self, name: str) -> None:
        """Stop a running job that was started with `start(..., attended=True)`.

        Call this method after such a job has ended, too. It closes the pipe to the job.
        """
        pipe = self._pipes.pop(name, None)
        if pipe is not None:
            os.close(pipe)

    def exists(self, name: str) -> bool:
        """Return whether this machine has the folder of a job of this name."""
        return _is_name(name) and (self.root / name).exists()

    def describe(self, name: str) -> Description:
        """Return the state of a job, in the fields of DescribeTrainingJob's answer.

        Raises:
            JobError: The job does not exist.
        """
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

    def output_folder(self, name: str) -> Path:
        """Return the directory with the model and the output data of a job that has ended.

        Raises:
            JobError: The job does not exist.
        """
        folder = self._existing(name)
        return folder.output(folder.job())

    def output_data_folders(self, name: str) -> list[Path]:
        """Return the directory of output data of each host of a job that runs.

        Raises:
            JobError: The job does not exist.
        """
        hosts = self._existing(name).hosts
        return [path for path in sorted(hosts.glob(f"*/{OUTPUT_DATA}")) if path.is_dir()]

    def stop(self, name: str, *, now: bool = False) -> None:
        """Request that a job stops, and return without waiting.

        Its ranks have 120 s to save a checkpoint. With `now`, its processes are killed at once. A
        second call with `now` discards the model that is being written.

        Raises:
            JobError: The job does not exist.
        """
        folder = self._existing(name)
        if not folder.state().is_terminal:
            folder.request_stop(now=now)

    def logs(self, name: str, *, follow: bool = False, new_only: bool = False) -> Iterator[str]:
        r"""Yield the output of all hosts as lines that end in \n or \r, in the order of arrival.

        With `follow`, continue until the job ends, and yield an empty string whenever there is no
        new output. With `new_only`, leave out the output before this call.

        Raises:
            JobError: The job does not exist, or its log was replaced by a link.
        """
        folder = self._existing(name)
        segments = Segments()
        with _opened_log(folder) as log:
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
        """Return the directory of the job's logs."""
        return str(self._folder(name).logs)

    def _folder(self, name: str) -> JobFolder:
        return JobFolder(self.root / name)

    def _existing(self, name: str) -> JobFolder:
        if not self.exists(name):
            raise JobError(
                f"there is no job {name!r}",
                f"{self.root} has no folder of this name",
                "Check the name, and that the job ran on this machine",
                kind="not_found",
            )
        return self._folder(name)


def _opened_log(folder: JobFolder) -> BinaryIO:
    try:
        return os.fdopen(open_file(folder.path, "logs/all.log"), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JobError(
            f"the log {folder.all_log} is not read",
            "it or its folder is a link or no regular file: a process of the job has replaced it",
            "Look at that file and at the job's code: such a link could show files of other users",
            kind="link",
        ) from error


def _is_name(name: str) -> bool:
    return len(name) <= _MAX_NAME and bool(JOB_NAME.fullmatch(name))


def _check_name(name: object) -> None:
    """Raise OptionError if SageMaker would not accept a job's name, which is also a folder's."""
    require(
        isinstance(name, str) and _is_name(name),
        what=f"TrainingJobName is {name!r}",
        why=JOB_NAME_RULE,
        hint="Correct the name",
        about="TrainingJobName",
    )


def _python_path() -> str:
    """Return the value of PYTHONPATH for the supervisor process.

    It has the entries of this process as absolute paths, and the directories of this package and of
    the runtime.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    specs = (find_spec("sagemaker_dist"), find_spec("smdist"))
    roots = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
    paths = [str(Path(path).absolute()) for path in (*filter(None, given), *roots)]
    return os.pathsep.join(dict.fromkeys(paths))


def _terms(job: LocalJob) -> Terms:
    """Return the job's hyperparameters in the form that `hyperparameter_faults` checks.

    The limits of SageMaker's API are left out: they do not apply to local jobs.
    """
    return Terms(
        hyperparameters=job.hyperparameters,
        runs_script=PROGRAM in job.hyperparameters,
        encodes_json=False,
        is_written=True,
    )


def _model_uri(job: LocalJob, state: State, folder: JobFolder) -> str:
    """Return where the model is or will be; "" if a job has failed or was stopped without one."""
    is_incomplete = state.is_terminal and state.status != "Completed"
    return "" if is_incomplete and not has_model(folder, job) else f"file://{folder.model(job)}"


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
        "ModelArtifacts": {"S3ModelArtifacts": _model_uri(job, state, folder)},
        **({"FailureReason": state.reason} if state.reason else {}),
        **({ROOT_CAUSE: state.cause} if state.cause else {}),
        **({LOST_LOG_BYTES: state.lost_log_bytes} if state.lost_log_bytes else {}),
        **({RESTARTS: list(state.restarts)} if state.restarts else {}),
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
