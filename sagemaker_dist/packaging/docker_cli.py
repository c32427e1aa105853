# SPDX-License-Identifier: Apache-2.0
"""The docker command with BuildKit, which docker-py has not: found, run, and listened to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.engine import address

_BUILT_IN: Final = range(20, 23)  # earlier ones lack mounts, later ones take a plugin
_KEPT_CHUNKS: Final = 400
_PATIENCE_SECONDS: Final = 10.0
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A docker command that builds with BuildKit."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def find_builder(path: str | None = None) -> Builder:
    """The first docker on the PATH that has BuildKit.

    Raises:
        SetupError: There is none.
    """
    seen = []
    for folder in (os.environ.get("PATH", "") if path is None else path).split(os.pathsep):
        docker = Path(folder or ".", "docker")
        if not os.access(docker, os.X_OK) or docker.is_dir():
            continue
        if _says(docker, "buildx", "version"):
            return Builder(command=(str(docker), "buildx", "build", "--load"))
        version = re.search(r"version (\d+)\.", _says(docker, "--version"))
        if version and int(version[1]) in _BUILT_IN:
            return Builder(command=(str(docker), "build"), environment={"DOCKER_BUILDKIT": "1"})
        seen.append(str(docker))
    why = f"{', '.join(seen)} has no buildx plugin" if seen else "there is no docker on the PATH"
    raise SetupError(
        "no docker command can build the image",
        f"it needs BuildKit, and {why}",
        "Install Docker with its buildx plugin (package docker-buildx-plugin or docker-buildx)",
    )


def run(builder: Builder, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run a build and show it: as docker does on a terminal, else line by line.

    Returns its exit status and its last lines. On Ctrl-C it has ended, too,
    when KeyboardInterrupt arrives.
    """
    # docker-py's engine, where the command might follow a context to another
    environment = {**os.environ, **builder.environment, "DOCKER_HOST": address()}
    on_terminal = sys.stderr.isatty()
    progress = "--progress=auto" if on_terminal else "--progress=plain"
    command = [*builder.command, progress, *arguments]
    kept: deque[bytes] = deque(maxlen=_KEPT_CHUNKS)
    with _output(on_terminal) as (ours, theirs):
        process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs)
        os.close(theirs)
        with _ended(process):
            for chunk in _chunks(ours):
                kept.append(chunk)
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
        status = process.wait()
    text = _ANSI.sub("", b"".join(kept).decode(errors="replace"))
    return status, [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """On the way out of an error the build is stopped: the terminal may not have done so."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


@contextmanager
def _output(on_terminal: bool) -> Iterator[tuple[int, int]]:
    """Our end and the build's end: of a terminal as wide as ours, or of a pipe."""
    ours, theirs = _terminal() if on_terminal else os.pipe()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def _terminal() -> tuple[int, int]:
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


def _chunks(source: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(source, 65536)
        except OSError:  # how a terminal ends
            return
        if not chunk:
            return
        yield chunk


def _says(docker: Path, *arguments: str) -> str:
    done = subprocess.run([docker, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
