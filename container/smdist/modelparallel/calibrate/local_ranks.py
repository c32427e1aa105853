# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine that measure this project's engine; none survives the measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Final

from sagemaker_dist.errors import SetupError
from smdist.modelparallel.core.calibration import AllReduceTime, MessageTime

_MODULE: Final = "smdist.modelparallel.calibrate.rank_process"
_START_SECONDS: Final = 60.0  # longer than imports and connections take on a busy machine
_GRACE_SECONDS: Final = 3.0


def measure_engine(
    num_ranks: int, limit: float
) -> tuple[tuple[AllReduceTime, ...], tuple[MessageTime, ...]]:
    """Return the times of all-reduces and messages between processes, in host memory.

    Args:
        num_ranks: Number of processes.
        limit: Seconds of the measurement, without the start of the processes.

    Raises:
        SetupError: A process failed, or did not end in time.
    """
    with TemporaryDirectory(prefix="smdist-calibrate-") as folder:
        # env adds a variable to the ranks' environment, and is replaced by Python
        start = ["env", f"SMDIST_SECRET_FILE={folder}/secret", sys.executable]
        commands = [
            [*start, "-m", _MODULE, f"{folder}/store", str(rank), str(num_ranks),
             str(limit)]
            for rank in range(num_ranks)
        ]  # fmt: skip
        secret = Path(folder, "secret")  # only these processes can join; the folder is private
        secret.write_text(token_hex(32))
        secret.chmod(0o600)
        with _processes(commands, Path(folder)) as processes:
            rows = _rows(processes, Path(folder), 4 * limit + _START_SECONDS)
    parts: dict[str, list[dict[str, float]]] = {"all_reduce": [], "messages": []}
    for row in rows:
        parts[str(row.pop("part"))].append(row)
    reduced = tuple(
        AllReduceTime(
            num_ranks=int(row["num_ranks"]),
            num_bytes=int(row["num_bytes"]),
            seconds=row["seconds"],
        )
        for row in parts["all_reduce"]
    )
    sent = tuple(
        MessageTime(num_bytes=int(row["num_bytes"]), seconds=row["seconds"])
        for row in parts["messages"]
    )
    return reduced, sent


@contextmanager
def _processes(
    commands: Sequence[Sequence[str]], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes with their output in files of a folder; end them at the end of the block.

    Ctrl-C in a terminal does not reach them, so that they end here, and print nothing.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, command in enumerate(commands):
            outputs = (folder / f"{name}{rank}" for name in ("out", "err"))
            with next(outputs).open("wb") as out, next(outputs).open("wb") as err:
                started.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        for each in started:
            each.terminate()
        for each in started:
            try:
                each.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
            assert each.stdin is not None
            each.stdin.close()


def _rows(
    processes: Sequence[subprocess.Popen[bytes]], folder: Path, limit: float
) -> list[dict[str, float]]:
    """Wait for all processes, and return what rank 0 printed.

    Raises:
        SetupError: A process failed, or did not end within `limit` seconds.
    """
    for rank, each in enumerate(processes):
        try:
            status = each.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            lines = (folder / f"err{rank}").read_text(errors="replace").strip().splitlines()
            raise SetupError(
                f"process {rank} of the measurement of all-reduces"
                + (" did not end" if status is None else f" ended with status {status}"),
                lines[-1] if lines else "it printed nothing",
                "Run sagemaker-dist doctor, which checks this machine",
            )
    return [json.loads(line) for line in (folder / "out0").read_text().splitlines()]
