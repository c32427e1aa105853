# SPDX-License-Identifier: Apache-2.0
"""This machine: Python, packages, Docker, the runtime of local jobs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sagemaker_dist.cli.doctor.rows import Row, fail, ok, unknown, warn
from sagemaker_dist.errors import DistError

_OLDEST = (3, 10)


def machine_rows(*, framework: str, local_type: str | None) -> Iterator[Row]:
    """What is installed and runs here; `local_type` is the job's, where it runs here."""
    yield _python()
    yield _package("boto3", "boto3", "")
    yield _sagemaker()
    yield _runtime(is_needed=local_type == "local_process")
    yield from _docker(framework, is_needed=local_type in {"local", "local_gpu"})


def _python() -> Row:
    says = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < _OLDEST:
        return fail("python", says, "Use Python 3.10 or newer")
    return ok("python", says)


def _package(name: str, package: str, mend: str) -> Row:
    found = _version(package)
    return warn(name, "not installed", mend) if found is None else ok(name, found)


def _sagemaker() -> Row:
    name, found = "sagemaker SDK", _version("sagemaker")
    if found is None:
        mend = "Job files need none. For the estimators: pip install 'sagemaker-dist[v2]'"
        return warn(name, "not installed", mend)
    if found.startswith("2."):
        return ok(name, found)
    mend = "The estimators need version 2; with 3, use ModelTrainer or job files"
    return warn(name, found, mend)


def _runtime(*, is_needed: bool) -> Row:
    name, mend = "local runtime", "Beside torch 2.13, in a clone, run: pip install ./container"
    bad = fail if is_needed else warn
    if sys.platform != "linux":
        return bad(name, f"built for Linux, this is {sys.platform}", "Use local --containers")
    if find_spec("smdist") is None:
        return bad(name, "not installed; local_process needs it", mend)
    found, torch = _version("sagemaker-dist-runtime"), _version("torch")
    ours = _version("sagemaker-dist")
    if found != ours:
        return bad(name, f"{found}, and sagemaker-dist is {ours}", mend)
    if torch is None:
        return bad(name, f"{found}, without torch", "Run: pip install torch==2.13.0")
    return ok(name, f"{found}, torch {torch}")


def _docker(framework: str, *, is_needed: bool) -> Iterator[Row]:
    from sagemaker_dist.packaging import local_image
    from sagemaker_dist.packaging.engine import Engine, connected

    bad = fail if is_needed else warn
    name = "docker"
    try:
        with connected() as client:
            engine, known = Engine.of(client), client.version()
            memory = f"{engine.memory_bytes / 2**30:,.0f} GiB"
            yield ok(name, f"{known['Version']}, {engine.num_cpus} CPUs, {memory}")
            name = "image here"
            facts = local_image(client, framework)
            yield ok(name, f"{facts.name}, {facts.size_bytes / 1e6:,.0f} MB")
    except DistError as error:
        yield bad(name, f"{error.what}: {error.why}", error.mend)
    except Exception as error:  # an engine that answers half is no crash of ours
        yield unknown(name, f"{type(error).__name__}: {error}", "Restart the engine")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
