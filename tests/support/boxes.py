# SPDX-License-Identifier: Apache-2.0
"""Containers that stand for SageMaker's hosts in tests, always removed at the end."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs import wait_until

from sagemaker_dist.contract import KEY, render


def write_base(base, script, *, options=None, **hyperparameters):
    """Write SageMaker's directory for one host, writable for every user, with the code in it."""
    for folder in ("code", "input/config", "model", "output/data"):
        (base / folder).mkdir(parents=True)
    (base / "code/train.py").write_text(script)
    sent = {"sagemaker_program": "train.py"} | hyperparameters
    sent = {key: json.dumps(value) for key, value in sent.items()}
    if options:
        sent[KEY] = json.dumps(render(options))
    resources = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"}
    files = {"hyperparameters": sent, "resourceconfig": resources, "inputdataconfig": {}}
    for name, content in files.items():
        (base / f"input/config/{name}.json").write_text(json.dumps(content))
    for path in (base, *base.rglob("*")):
        path.chmod(0o777)
    return base


@contextmanager
def running(engine, image, base, command=None, **choices):
    """Run a container with SageMaker's directory; remove it and its files in every case."""
    choices.setdefault("volumes", {str(base): {"bind": "/opt/ml", "mode": "rw"}})
    choices.setdefault("network_mode", "none")  # no wait for a name server either
    container = engine.containers.create(image, command, **choices)
    try:
        container.start()
        yield container
    finally:
        container.remove(force=True, v=True)


def said(container):
    """Return the container's output so far."""
    return container.logs().decode(errors="replace")


def status_of(container, seconds=60):
    """Return the container's exit status, waiting for a limited time."""
    return container.wait(timeout=seconds)["StatusCode"]


def until_there(path, container, seconds=60):
    """Wait for a file that the script writes; raise if the container ends first."""

    def is_there():
        container.reload()
        assert "exited" != container.status or path.exists(), said(container)
        return path.exists()

    return wait_until(is_there, seconds)


@contextmanager
def sdk_job(python, script, directory, *arguments):
    """Run a user's script of one of SageMaker's SDKs; remove the containers that it leaves.

    The script does not see the caller's AWS account. The SDK's temporary files and the script's
    output `job.log` are in `directory`.
    """
    for folder in ("tmp", "root"):
        (directory / folder).mkdir()
    shutil.copytree(Path(script).parent / "script", directory / "script")
    with (directory / "job.log").open("w") as log:
        job = subprocess.Popen(
            [str(python), str(script), *arguments],
            env=_sdk_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # docker-compose is in it
        )
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(10)
        _compose_down(directory)


def run_sdk_job(python, script, directory, *arguments, seconds=150):
    """Run such a script to its end and check that it succeeds."""
    with sdk_job(python, script, directory, *arguments) as job:
        status = job.wait(seconds)
        lines = (directory / "job.log").read_text(errors="replace").splitlines()

    assert 0 == status, "\n".join(line for line in lines if "| " in line)


def hosts_of(engine, directory):
    """Return the running containers of a job whose files are in `directory`, in order of names."""
    found = [
        container
        for container in engine.containers.list()
        if any(mount["Source"].startswith(f"{directory}/") for mount in container.attrs["Mounts"])
    ]
    return sorted(found, key=lambda container: container.name)


def _sdk_environment(directory):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return kept | {
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(directory),
        "SAGEMAKER_VALIDATE_ROLE": "false",
        "TMPDIR": str(directory / "tmp"),
    }


def _compose_down(directory):
    """Remove the containers and the network of every compose file below; the SDKs leave both."""
    for file in directory.rglob("docker-compose.yaml"):
        subprocess.run(
            ["docker-compose", "-f", str(file), "down", "--volumes", "--timeout", "0"],
            check=True,
            capture_output=True,
            timeout=60,
        )
