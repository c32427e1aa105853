# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that something happens to: each case runs in a process of its own.

    python -m benchmarks.faults.checkpoint_cases "no checkpoint is there" FOLDER

prints what was seen as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.fault_row import Seen

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its function, and what a user loses."""

    check: Callable[[Path], dict[str, Any]]
    lost: str


def in_a_process(name: str, framework: str) -> Seen:
    """Run one case, and compare the descriptors and files that it leaves with those before."""
    with tempfile.TemporaryDirectory(prefix="flt-") as folder:
        command = [sys.executable, "-m", __name__, name, folder]
        environ = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, cwd=_ROOT, env=environ
        )
    if done.returncode:
        complaint = f"{framework}: the case ended with {done.returncode}"
        return Seen(complaints=[complaint], stacks=done.stderr)
    return Seen(**json.loads(done.stdout.splitlines()[-1]))


def _model(value: float = 0.0) -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    nn.init.constant_(model.weight, value)
    return model


def _save(folder: Path, tag: int, **options: Any) -> None:
    from smdist.modelparallel.torch.checkpoint import save_checkpoint

    save_checkpoint(folder, tag, model=_model(tag), user_content=tag, **options)


def _load(folder: Path) -> tuple[Any, list[str]]:
    """Return the content that is loaded, and the tags of the checkpoints that are skipped."""
    from smdist.modelparallel.torch.checkpoint import (
        SkippedCheckpointWarning,
        resume_from_checkpoint,
    )

    model = _model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        content = resume_from_checkpoint(folder, model=model)
    if float(model.weight.detach()[0, 0]) != content:
        raise AssertionError(f"weights of another checkpoint than {content}")
    named = [each.message for each in caught if isinstance(each.message, SkippedCheckpointWarning)]
    return content, [str(each.tag) for message in named for each in message.skipped]


def _timed(call: Callable[[], Any]) -> tuple[float, str]:
    """Return how long a call took until its error, and the error's kind."""
    from sagemaker_dist.errors import DistError

    began = time.monotonic()
    try:
        call()
    except DistError as error:
        return time.monotonic() - began, error.kind
    return time.monotonic() - began, "no error"


def _goes_back_to(folder: Path, *tags: int) -> dict[str, Any]:
    """Load what is there: one of these checkpoints, and whole. One that is skipped is named."""
    began = time.monotonic()
    content, skipped = _load(folder)
    complaints = [] if content in tags else [f"loads {content}, not {tags}"]
    if len(tags) == 2 and content == tags[1] and skipped != [str(tags[0])]:
        complaints.append(f"names {skipped} as skipped")
    return {
        "seconds": time.monotonic() - began,
        "notes": [f"loads {content}; names as skipped: {', '.join(skipped) or 'none'}"],
        "complaints": complaints,
    }


def _full_disk(folder: Path) -> dict[str, Any]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    try:
        _save(disk, 10)
        (disk / "other").write_bytes(b"x" * (200 << 10))
        seconds, kind = _timed(lambda: _save(disk, 20))
        left = [each.name for each in disk.glob("20_partial/*")]
        found = _goes_back_to(disk, 10)
    finally:
        subprocess.run(["umount", disk], check=True)
    wrong = [] if kind == "file" else [f"the error's kind is {kind}"]
    files = [f"file {name}" for name in left]
    return {**found, "seconds": seconds, "left": files, "complaints": found["complaints"] + wrong}


def _killed(folder: Path) -> dict[str, Any]:
    """Kill the saving process at 20 moments; the one before or the new one is whole each time."""
    _save(folder, 10)
    wrong = []
    for number in range(20):
        child = os.fork()
        if child == 0:
            while True:
                _save(folder, 20)
        time.sleep(0.01 + 0.013 * number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        content, _ = _load(folder)
        if content not in (10, 20):
            wrong.append(f"loads {content} after kill {number}")
    _save(folder, 30)
    found = _goes_back_to(folder, 30)
    return {**found, "complaints": found["complaints"] + wrong}


def _half_synced(folder: Path) -> dict[str, Any]:
    """Remove each file of the newest checkpoint in turn."""
    _save(folder, 10)
    _save(folder, 20)
    return _each_file_changed(folder, lambda path: path.unlink())


def _cut_short(folder: Path) -> dict[str, Any]:
    _save(folder, 10)
    _save(folder, 20)
    return _each_file_changed(folder, lambda path: os.truncate(path, path.stat().st_size // 2))


def _one_bit(folder: Path) -> dict[str, Any]:
    _save(folder, 10)
    _save(folder, 20)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)

    return _each_file_changed(folder, flip)


def _each_file_changed(folder: Path, change: Callable[[Path], None]) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": 0.0, "notes": [], "complaints": []}
    for name in sorted(each.name for each in (folder / "20_partial").iterdir()):
        copy = folder.with_name(f"{folder.name}-copy")
        shutil.copytree(folder, copy)
        change(copy / "20_partial" / name)
        one = _goes_back_to(copy, 20, 10)
        found["seconds"] = max(found["seconds"], one["seconds"])
        found["notes"] += one["notes"]
        found["complaints"] += one["complaints"]
        shutil.rmtree(copy)
    return found


def _clock_back(folder: Path) -> dict[str, Any]:
    _save(folder, 10)
    now = time.time_ns()
    time.time_ns = lambda: now - 3_600 * 10**9
    _save(folder, 20, num_kept_partial_checkpoints=1)
    return _goes_back_to(folder, 20)


def _two_writers(folder: Path) -> dict[str, Any]:
    """Let a job that lingers and its restart save at the same time, 40 times."""
    children = []
    for first in (100, 200):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for number in range(20):
                    _save(folder, first + number)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    began = time.monotonic()
    content, skipped = _load(folder)
    complaints = [] if content in (119, 219) else [f"loads {content}"]
    return {
        "seconds": time.monotonic() - began,
        "notes": [f"loads {content}; writers ended with {codes}; skipped {skipped}"],
        "complaints": complaints + ([] if codes == [0, 0] else [f"writers ended with {codes}"]),
    }


def _nothing(folder: Path) -> dict[str, Any]:
    from smdist.modelparallel.torch.checkpoint import NoCheckpointError

    began = time.monotonic()
    try:
        content = _load(folder)
    except NoCheckpointError as error:
        seconds = time.monotonic() - began
        return {"seconds": seconds, "notes": [f"NoCheckpointError, {error.kind}"]}
    return {"complaints": [f"loads {content}"]}


CASES = {
    "disk full while a checkpoint is saved": Case(_full_disk, "that save; older ones are whole"),
    "killed while a checkpoint is saved": Case(_killed, "that save; the one before is whole"),
    "newest checkpoint half synced": Case(_half_synced, "steps since the checkpoint before it"),
    "newest checkpoint cut short": Case(_cut_short, "steps since the checkpoint before it"),
    "one bit of a checkpoint flipped": Case(_one_bit, "steps since the checkpoint before it"),
    "wall clock goes back between checkpoints": Case(_clock_back, "nothing"),
    "two writers of one checkpoint": Case(_two_writers, "nothing"),
    "no checkpoint is there": Case(_nothing, "nothing; training starts at step 0"),
}


def main() -> None:
    """Run the case of the command line, and print what was seen."""
    name, folder = sys.argv[1], Path(sys.argv[2]) / "checkpoints"
    folder.mkdir()
    _model()  # imports torch, before any time is taken
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count
    found = CASES[name].check(folder)
    if (more := len(os.listdir("/proc/self/fd")) - before) > 2:  # noqa: PTH208
        found.setdefault("left", []).append(f"{more} descriptors")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
