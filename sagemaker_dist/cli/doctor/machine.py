# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine: Python, packages, Docker, the runtime of local jobs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sagemaker_dist.cli.doctor.rows import Row, fail, failed, ok, unknown, warn
from sagemaker_dist.errors import DistError

_OLDEST = (3, 10)


def machine_rows(*, framework: str, local_type: str | None) -> Iterator[Row]:
    """Yield the results of checks that Python, packages, local runtime and Docker are installed.

    Args:
        framework: Framework whose training image is looked up in Docker, such as "torch".
        local_type: Instance type of a local job, such as "local_process"; None for other jobs,
            which need neither the local runtime nor Docker.
    """
    yield _python()
    yield _package("boto3", "boto3", "")
    yield _sagemaker()
    yield _runtime(is_needed=local_type == "local_process")
    yield from _docker(framework, is_needed=local_type in {"local", "local_gpu"})


def _python() -> Row:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < _OLDEST:
        return fail("python", text, "Use Python 3.10 or newer")
    return ok("python", text)


def _package(name: str, package: str, hint: str) -> Row:
    found = _version(package)
    return warn(name, "not installed", hint) if found is None else ok(name, found)


def _sagemaker() -> Row:
    name, found = "sagemaker SDK", _version("sagemaker")
    if found is None:
        hint = "Job files work without it. For the estimators: pip install 'sagemaker-dist[v2]'"
        return warn(name, "not installed", hint)
    if found.startswith("2."):
        return ok(name, found)
    hint = "The estimators need version 2; with version 3, use ModelTrainer or job files"
    return warn(name, found, hint)


def _runtime(*, is_needed: bool) -> Row:
    name, hint = (
        "local runtime",
        "With torch 2.13 installed, run in a clone of the project: pip install ./container",
    )
    bad = fail if is_needed else warn
    if sys.platform != "linux":
        return bad(
            name,
            f"the runtime runs on Linux only, and this is {sys.platform}",
            "Run: sagemaker-dist local --containers",
        )
    if find_spec("smdist") is None:
        return bad(name, "not installed; local_process needs it", hint)
    found, torch = _version("sagemaker-dist-runtime"), _version("torch")
    expected = _version("sagemaker-dist")
    if found != expected:
        return bad(name, f"{found}, but sagemaker-dist is {expected}", hint)
    if torch is None:
        return bad(name, f"{found}, without torch", "Run: pip install torch==2.13.0")
    return ok(name, f"{found}, torch {torch}")


def _docker(framework: str, *, is_needed: bool) -> Iterator[Row]:
    from sagemaker_dist.packaging import local_image
    from sagemaker_dist.packaging.docker_engine import Engine, connected

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
        yield failed(name, error, status="fail" if is_needed else "warn")
    except Exception as error:  # broken answers of an engine must not crash this command
        yield unknown(name, f"{type(error).__name__}: {error}", "Restart the engine")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
