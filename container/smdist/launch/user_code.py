# SPDX-License-Identifier: Apache-2.0
"""Copies or downloads the user's code to `<base>/code`, and installs its requirements."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote

from sagemaker_dist.contract.redaction import without_login
from sagemaker_dist.errors import LaunchError, closest
from smdist.code_source import Source
from smdist.launch.launch_command import python_command

_NEVER: Final = frozenset({".git", "__pycache__"})
_LOCK: Final = ".smdist-pip.lock"


def fetch(source: Source, code: Path) -> Path:
    """Copy, download or unpack the source into the directory `code`; return the script's path.

    Raises:
        LaunchError: The code, or the script in it, does not exist.
    """
    code.mkdir(parents=True, exist_ok=True)
    if source.submit_directory:
        _place(source, code)
    return _script(source.program, code)


def install_requirements(source: Source, code: Path, environ: Mapping[str, str]) -> None:
    """Install the packages of the source's requirements file with pip, if the file exists.

    The file is in the directory `code`. pip's output goes to the log. If the user may not write to
    the image, pip installs into the HOME of `environ`.

    Raises:
        LaunchError: pip failed, or a requirements file that must exist is missing.
    """
    requirements = code / source.requirements
    if not source.requirements or not (requirements.is_file() or source.needs_requirements):
        return
    if not requirements.is_file():
        raise LaunchError(
            f"the requirements file {source.requirements!r} is missing",
            f"there is no such file in {code}",
            "Correct the path in requirements of SourceCode, or leave requirements out",
            about="requirements",
            kind="missing",
        )
    with _one_at_a_time(code, environ):
        command = _install_command(source, requirements)
        status = subprocess.run(command, cwd=code, env=dict(environ), check=False).returncode
    if status:
        raise LaunchError(
            f"the packages of {source.requirements} were not installed",
            f"pip exited with code {status}",
            "Read pip's output in this host's log. If a package is wrong, correct"
            f" {source.requirements}; if the host cannot reach the package index, set"
            " PIP_INDEX_URL (and PIP_CERT behind a proxy) in environment",
            about="requirements",
            kind="not_installed",
        )


def _install_command(source: Source, requirements: Path) -> list[str]:
    if source.installer is not None:
        return python_command(str(source.installer), str(requirements))
    flags = ("--disable-pip-version-check", "--no-input")
    return python_command("-m", "pip", "install", *flags, "-r", str(requirements))


@contextmanager
def _one_at_a_time(code: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Hold a lock file during the `with` block, so that only one pip runs at a time.

    Emulated hosts install packages into the same Python.
    """
    lock = _open_lock(code, environ)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(code: Path, environ: Mapping[str, str]) -> int:
    """Return the descriptor of the lock file, which lies where pip installs packages.

    That is beside Python's packages or, if the user may not write there, in HOME, else in the
    host's own directory. Other users can neither open the file nor put one there: in a directory
    for all users, such as /tmp, they could, and could then block this host.
    """
    packages, home = sysconfig.get_path("purelib"), environ.get("HOME")
    for directory in filter(None, (packages, home)):
        with suppress(OSError):
            return _open_own(Path(directory, _LOCK))
    return _open_own(code.parent / _LOCK)


def _open_own(path: Path) -> int:
    """Open a file of this user, which is created if it is missing.

    Raises:
        OSError: The file is a link or another user's, or cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "it belongs to another user", str(path))


def _place(source: Source, code: Path) -> None:
    scheme, _, rest = source.submit_directory.rpartition("://")
    if scheme == "s3":
        with tempfile.TemporaryDirectory() as folder:
            tarball = Path(folder) / "source.tar.gz"
            _download(source, tarball)
            _extract(tarball, code, source.submit_directory)
        return
    local = Path(unquote(rest) if scheme == "file" else source.submit_directory)
    if local.is_dir():
        if local.resolve() != code.resolve():
            _copy(local, code, source.submit_directory)
    elif local.is_file():
        _extract(local, code, source.submit_directory)
    else:
        raise _no_code(
            source.submit_directory, "there is no such directory or tarball", "missing_file"
        )


def _copy(local: Path, code: Path, origin: str) -> None:
    """Copy the directory `local` to `code`; `origin` is the name of `local` in errors.

    The copy leaves out .git, __pycache__, broken links and special files. It also leaves out what
    would make it endless: the parent of `code`, if it is in `local`, and links to a directory that
    contains the link.
    """
    base = code.parent.resolve()

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if _is_left_out(Path(directory, name), base)}

    try:
        shutil.copytree(local, code, dirs_exist_ok=True, ignore=left_out)
    except shutil.Error as error:
        raise _no_code(
            origin, "; ".join(str(fault[2]) for fault in error.args[0][:3]), "unreadable_file"
        ) from error
    except (OSError, RecursionError) as error:
        raise _no_code(origin, str(error), "unreadable_file") from error


def _is_left_out(path: Path, base: Path) -> bool:
    if path.name in _NEVER:
        return True
    if not path.is_dir():
        return not path.is_file()  # broken links, sockets, fifos, devices
    real = Path(os.path.realpath(path))
    around = (Path(os.path.realpath(above)) for above in path.parents)
    return real == base or (path.is_symlink() and any(each.is_relative_to(real) for each in around))


def _download(source: Source, target: Path) -> None:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise LaunchError(
            f"the code at {source.submit_directory} cannot be downloaded",
            "boto3 is not installed in this image",
            "Add boto3 to the image",
            about="sagemaker_submit_directory",
            kind="missing",
        ) from error
    bucket, _, key = source.submit_directory.removeprefix("s3://").partition("/")
    try:
        client = boto3.client("s3", region_name=source.region, endpoint_url=source.endpoint)
        client.download_file(bucket, key, str(target))
    except (BotoCoreError, ClientError, OSError) as error:
        why = without_login(str(error))
        raise _no_code(source.submit_directory, why, "not_downloaded") from error


def _extract(tarball: Path, code: Path, origin: str) -> None:
    """Unpack a tarball into the directory `code`; `origin` is its name in errors.

    Raises:
        LaunchError: The tarball cannot be unpacked, or has a path or link to outside of `code`.
    """
    try:
        with tarfile.open(tarball) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(code, filter="data")
            else:  # Python 3.10.11, 3.11.3 and older
                archive.extractall(code, members=list(_harmless(archive)))  # noqa: S202 - they are
    except (tarfile.TarError, OSError, EOFError) as error:
        raise _no_code(
            origin, f"it cannot be unpacked as a tarball ({error})", "corrupt"
        ) from error


def _harmless(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the archive's members, which must be plain files and directories inside the archive.

    SageMaker's SDK packs only such members.

    Raises:
        tarfile.ReadError: A member is a link, or its path is absolute or contains "..".
    """
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.ReadError(
                f"{member.name!r} must be a plain file or directory with a relative path without"
                " '..'"
            )
        yield member


def _no_code(origin: str, why: str, kind: str) -> LaunchError:
    return LaunchError(
        f"the code at {origin} cannot be copied to this host",
        why,
        "Check that the hyperparameter sagemaker_submit_directory names the code, and that the"
        " role is allowed to read it",
        about="sagemaker_submit_directory",
        kind=kind,
    )


def _script(program: str, code: Path) -> Path:
    script = code / program
    if not program:
        raise LaunchError(
            "the job names no script",
            "the hyperparameter sagemaker_program is missing",
            "Pass the script's path as entry_point, such as entry_point='train.py'",
            about="sagemaker_program",
            kind="missing",
        )
    if script.suffix != ".py":
        raise LaunchError(
            f"the script is {program!r}",
            "the launcher starts only Python scripts",
            "Pass a script whose name ends in .py as entry_point",
            about="sagemaker_program",
            kind="unsupported",
        )
    if not script.is_file():
        present = [str(path.relative_to(code)) for path in code.rglob("*.py")]
        hint = closest(program, present) if present else "Add the script to the source directory"
        raise LaunchError(
            f"the script {program!r} is missing",
            f"there is no such file in {code}",
            hint,
            about="sagemaker_program",
            kind="missing_file",
        )
    return script
