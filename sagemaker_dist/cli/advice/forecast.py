# SPDX-License-Identifier: Apache-2.0
"""Best layout of a model on each cluster, from the runtime's planner in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.advice.calibrated_type import MeasuredType
from sagemaker_dist.cli.advice.candidates import Candidate
from sagemaker_dist.errors import JobError, OptionError, SetupError, raise_all

_MODULE: Final = "smdist.modelparallel.planner.compare_clusters"
_LACKS: Final = re.compile(r"No module named '?(smdist|torch)[.\w]*'?")


def forecasts_of(
    file: Path, candidates: Sequence[Candidate], *, global_batch: int | None, precision: str,
    python: str | None, calibration: MeasuredType | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the planner's answer; its `results` are in the order of the candidates.

    Args:
        file: Model file.
        candidates: Clusters.
        global_batch: Samples of a step over all replicas; None for the batch of `example()` on
            each replica.
        precision: "float32", "bfloat16" or "float16", for the bytes of the training's state.
        python: Interpreter with torch and the runtime; None for this one.
        calibration: Measured speeds of one type; None if no type was measured.

    Raises:
        OptionError: The model file or the file of measured speeds is wrong.
        SetupError: The interpreter does not exist, or lacks torch or the runtime.
        JobError: The planner failed.
    """
    request = {
        "file": str(file),
        "clusters": [each.cluster.document() for each in candidates],
        "global_batch": global_batch,
        "precision": precision,
        "calibration": None if calibration is None else str(calibration.file),
        "calibrated": [
            number
            for number, each in enumerate(candidates)
            if calibration is not None and each.instance_type == calibration.instance_type
        ],
    }
    command = [python or sys.executable, "-m", _MODULE]
    try:
        done = _run(command, json.dumps(request))
    except OSError as error:
        hint = "Pass --python with an interpreter that has torch and smdist"
        raise SetupError(f"{command[0]} cannot be run", str(error), hint) from error
    answer = _answer(done.stdout)
    if "error" in answer:
        raise_all(_faults(answer["error"]))
    if done.returncode or not answer:
        raise _failure(command[0], done)
    return answer


def _run(command: list[str], request: str) -> subprocess.CompletedProcess[str]:
    """Run the planner, and print its progress on standard error while it runs.

    Returns:
        The ended process; its `stdout` is the last line, without those of progress.

    Raises:
        OSError: The interpreter cannot be run.
    """
    with (
        TemporaryFile("w+", errors="replace") as errors,
        TemporaryFile("w+") as given,
    ):
        given.write(request)
        given.seek(0)
        with subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            last = ""
            try:
                for line in process.stdout:
                    text = _answer(line).get("progress")
                    if text is None:
                        last += line
                    else:
                        screen.note(text)
            except BaseException:  # Ctrl-C and SIGTERM: end the planner too
                process.terminate()
                raise
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, last, errors.read())


def _answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _faults(document: dict[str, Any]) -> Iterator[OptionError]:
    """Yield the errors of a document that `as_dict` of an error returned; it may hold several."""
    for fields in document.get("faults", [document]):
        texts = (fields["what"], fields["why"], fields["hint"])
        yield OptionError(*texts, about=fields["about"] or (), kind=fields["kind"])


def _failure(python: str, done: subprocess.CompletedProcess[str]) -> SetupError | JobError:
    missing = _LACKS.search(done.stderr)
    if missing is not None:
        return SetupError(
            f"{python} has no {_MODULE}",
            f"Python reports {missing[0]!r}",
            "With torch 2.13 installed, run in a clone of the project: pip install ./container",
        )
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return JobError(
        f"the planner ended with status {done.returncode}",
        last.rstrip("."),
        "Run sagemaker-dist plan with the same file to see its messages",
    )
