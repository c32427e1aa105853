# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist debug`: which ranks of a job differ, and where each one is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.find_job import runner_of
from sagemaker_dist.cli.shared_options import aws_options, complete_job, json_option

if TYPE_CHECKING:
    from sagemaker_dist.debugging import Dumps
    from sagemaker_dist.errors import JobError
    from sagemaker_dist.runners import LocalRunner, Runner
    from sagemaker_dist.runners.sagemaker import SageMakerRunner

_ANSWER_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2
_MOST_LINES: Final = 50
_FILES_WRITTEN: Final = (
    "ranks that have connected, as in init_process_group or init(), write them when an operation"
    " fails, after SIGUSR2, or on a request"
)
_FILES_SAVED: Final = (
    "SageMaker keeps a job's output data when the job has ended, and its ranks may not have written"
    " them"
)
_WAIT: Final = (
    "Look at sagemaker-dist logs: a script that makes no process group never has them; another one"
    " has them once its ranks have connected"
)
_READ_LOGS: Final = "Look at sagemaker-dist logs: no operation between its ranks has failed"
_LOOK_ELSEWHERE: Final = (
    "For a job that runs, docs/debugging.md has the commands for a shell in its container; or pass"
    " the folder or the output.tar.gz that you have downloaded"
)
_OURS: Final = "smdist: "  # lines of the engine and of the launcher begin with this


@click.command()
@click.argument("job", shell_complete=complete_job)
@json_option
@aws_options
def debug(job: str, as_json: bool, region: str | None, profile: str | None) -> int:
    """Show where the ranks of JOB are, and the first operation in which they differ.

    JOB is the name of a job, or a folder or archive with the files of its ranks. Ranks of a job
    that runs on this machine write their files anew. Exit with 1 if ranks differ.
    """
    from sagemaker_dist.debugging import report_of, sentences

    dumps, lines = _collect(job, region, profile)
    report: dict[str, Any] = {"job": job, **report_of(dumps), "log": lines}
    if as_json:
        screen.print_json(report)
    else:
        for text in sentences(dumps):
            screen.line(text)
        if lines:
            screen.line("the last lines of smdist in the log, which may be from long ago:")
        for text in lines:
            screen.line(f"  {text}")
    return 1 if report["divergences"] else 0


def _collect(job: str, region: str | None, profile: str | None) -> tuple[Dumps, list[str]]:
    """Return the files of the ranks of `job`, and the lines of its log on late ranks.

    Raises:
        JobError: There are no files.
    """
    from sagemaker_dist.debugging import read_dumps
    from sagemaker_dist.runners import LocalRunner
    from sagemaker_dist.runners.protocol import TERMINAL

    path = Path(job).expanduser()
    if "/" in job or path.exists():
        dumps = read_dumps(path)
        if not dumps.histories:
            raise _no_files(job, _FILES_WRITTEN, _LOOK_ELSEWHERE)
        return dumps, []
    runner = runner_of(job, region, profile)
    dumps = _local(runner, job) if isinstance(runner, LocalRunner) else _remote(runner, job)
    lines = list(_own_lines(runner, job))
    if not dumps.histories and isinstance(runner, LocalRunner):
        has_ended = runner.describe(job)["TrainingJobStatus"] in TERMINAL
        raise _no_files(job, _FILES_WRITTEN, _READ_LOGS if has_ended else _WAIT)
    if not dumps.histories and not lines:
        raise _no_files(job, _FILES_SAVED, _LOOK_ELSEWHERE)
    return dumps, lines


def _local(runner: LocalRunner, job: str) -> Dumps:
    """Return the files of a job of this machine; let its ranks write them anew if it runs."""
    from sagemaker_dist.debugging import read_dumps, request_dumps
    from sagemaker_dist.runners.protocol import TERMINAL

    if runner.describe(job)["TrainingJobStatus"] in TERMINAL:
        return read_dumps(runner.output_folder(job))
    begin = time.time()
    folders = runner.output_data_folders(job)
    for folder in folders:
        request_dumps(folder)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        dumps = _merged(folders)
        fresh = [each for each in dumps.histories.values() if each.written_at >= begin]
        size = max((each.size for each in fresh), default=1)
        if len(fresh) >= size or time.monotonic() > deadline:
            return dumps
        time.sleep(_POLL_SECONDS)


def _merged(folders: list[Path]) -> Dumps:
    """Return the files of all folders; of two histories of a rank, the newer one."""
    from sagemaker_dist.debugging import Dumps, read_dumps

    merged = Dumps()
    for folder in folders:
        each = read_dumps(folder)
        for rank, history in each.histories.items():
            known = merged.histories.get(rank)
            if known is None or known.written_at < history.written_at:
                merged.histories[rank] = history
        merged.stacks |= each.stacks
        merged.states |= each.states
        merged.notes += each.notes
    return merged


def _remote(runner: Runner, job: str) -> Dumps:
    """Return the files in the output data of a job of SageMaker; none if there are no such data."""
    from sagemaker_dist.debugging import Dumps, read_tar

    dumps = Dumps()
    sagemaker: SageMakerRunner = runner  # type: ignore[assignment]  # runner_of has two kinds
    with sagemaker.output_data(job) as found:
        if found is not None:
            read_tar(found.content, found.uri, dumps)
    return dumps


def _own_lines(runner: Runner, job: str) -> Iterator[str]:
    """Yield the last lines of the engine and the launcher in the log of the job."""
    lines = [text.rstrip("\r\n") for text in runner.logs(job) if f"] {_OURS}" in text]
    yield from lines[-_MOST_LINES:]


def _no_files(job: str, why: str, hint: str) -> JobError:
    from sagemaker_dist.errors import JobError

    return JobError(f"{job} has no files of its ranks", why, hint, kind="no_files")
