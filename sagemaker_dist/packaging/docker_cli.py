# SPDX-License-Identifier: Apache-2.0
"""The docker command, which builds images with BuildKit; docker-py cannot use BuildKit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.docker_engine import address

_LOAD: Final = "--load"
_BUILT_IN: Final = range(20, 23)  # versions with BuildKit built in; later ones need a plugin
_KEPT_CHUNKS: Final = 400
_EXIT_SECONDS: Final = 10.0
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A docker command that builds images with BuildKit.

    Attributes:
        command: First words of the command line, to which the build's arguments are added.
        environment: Environment variables that the command needs.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def find_builder(path: str | None = None) -> Builder:
    """Return the first docker command on the PATH that has BuildKit.

    `path` replaces the environment variable PATH, if it is given.

    Raises:
        SetupError: No docker command has BuildKit.
    """
    seen = []
    for folder in (os.environ.get("PATH", "") if path is None else path).split(os.pathsep):
        docker = Path(folder or ".", "docker")
        if not os.access(docker, os.X_OK) or docker.is_dir():
            continue
        if _output_of(docker, "buildx", "version"):
            return Builder(command=(str(docker), "buildx", "build", _LOAD))
        version = re.search(r"version (\d+)\.", _output_of(docker, "--version"))
        if version and int(version[1]) in _BUILT_IN:
            return Builder(command=(str(docker), "build"), environment={"DOCKER_BUILDKIT": "1"})
        seen.append(str(docker))
    why = f"{', '.join(seen)} has no buildx plugin" if seen else "the PATH has no docker command"
    raise SetupError(
        "no docker command can build the image",
        f"the build needs BuildKit, and {why}",
        "Install Docker with its buildx plugin (package docker-buildx-plugin or docker-buildx)",
        kind="no_buildx" if seen else "no_docker",
    )


def exporter(builder: Builder) -> Builder:
    """Return a builder whose result is not loaded into the engine, for builds with --output."""
    return replace(builder, command=tuple(word for word in builder.command if word != _LOAD))


def run(builder: Builder, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Build an image, and return the exit status and the last lines of the build's output.

    `arguments` are added to the command line of `builder`. The output is also copied to standard
    error. On Ctrl-C, the build is ended before KeyboardInterrupt is raised.
    """
    # without DOCKER_HOST, the docker command might use another engine than docker-py
    environment = {**os.environ, **builder.environment, "DOCKER_HOST": address()}
    on_terminal = sys.stderr.isatty()
    progress = "--progress=auto" if on_terminal else "--progress=plain"
    command = [*builder.command, progress, *arguments]
    kept: deque[bytes] = deque(maxlen=_KEPT_CHUNKS)
    with _output(on_terminal) as (own_end, build_end):
        process = subprocess.Popen(command, env=environment, stdout=build_end, stderr=build_end)
        os.close(build_end)
        with _ended(process):
            for chunk in _chunks(own_end):
                kept.append(chunk)
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
        status = process.wait()
    text = _ANSI.sub("", b"".join(kept).decode(errors="replace"))
    return status, [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the build process if the `with` block raises, such as after Ctrl-C."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


@contextmanager
def _output(on_terminal: bool) -> Iterator[tuple[int, int]]:
    """Yield two file descriptors: one to read the build's output, and one that the build writes to.

    With `on_terminal`, these are the ends of a pseudo-terminal, so that the build shows progress
    bars; else they are the ends of a pipe.
    """
    own_end, build_end = _terminal() if on_terminal else os.pipe()
    try:
        yield own_end, build_end
    finally:
        os.close(own_end)


def _terminal() -> tuple[int, int]:
    import fcntl
    import pty
    import termios

    own_end, build_end = pty.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(build_end, termios.TIOCSWINSZ, size)
    return own_end, build_end


def _chunks(source: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(source, 65536)
        except OSError:  # the build has closed the pseudo-terminal
            return
        if not chunk:
            return
        yield chunk


def _output_of(docker: Path, *arguments: str) -> str:
    done = subprocess.run([docker, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
