# SPDX-License-Identifier: Apache-2.0
"""Pushing to a registry that asks for a password, as Amazon ECR does.

The registry is a real one at ECR's own name, which /etc/hosts leads to this machine; the
control plane (tokens, repositories) is moto's.
"""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import boto3
import pytest
from docker.errors import APIError
from moto import mock_aws

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import PushOptions, inspect_image, push_image

ADDRESS = "127.77.0.1"  # Docker speaks plain HTTP to 127.0.0.0/8
HOST = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
USER, PASSWORD = "AWS", "123456789012-auth-token"  # moto's
CONFIGURATION = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}:80"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory, missing):
    """A registry with a password at the name of ECR's."""
    if os.geteuid() or not shutil.which("docker-registry"):
        missing("a registry at ECR's name takes root and docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    (folder / "config.yml").write_text(CONFIGURATION.format(folder=folder, address=ADDRESS))
    words = ["htpasswd", "-Bbc", folder / "htpasswd", USER, PASSWORD]
    subprocess.run(words, check=True, capture_output=True)
    with (folder / "log").open("w") as log, _in_hosts():
        words = ["docker-registry", "serve", folder / "config.yml"]
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            _answers()
            yield HOST
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def _in_hosts():
    hosts = Path("/etc/hosts")
    before = hosts.read_text()
    hosts.write_text(f"{before}\n{ADDRESS} {HOST}\n")
    try:
        yield
    finally:
        hosts.write_text(before)


def _answers() -> None:
    deadline = monotonic() + 60
    while True:
        try:
            urlopen(f"http://{ADDRESS}/").close()
            return
        except OSError:
            assert monotonic() < deadline, "no registry"
            sleep(0.1)


@pytest.fixture
def session():
    with mock_aws():
        yield boto3.Session("testing", "testing", region_name="us-east-1")


@pytest.fixture
def small(engine, offline):
    """An image that is quick to push, under a name of its own."""
    name = "smdist-test-push:1"
    engine.images.get(offline["base_image"]).tag(name)
    yield name
    for tag in engine.images.get(name).tags:
        if "push" in tag or HOST in tag or ADDRESS in tag:
            engine.images.remove(tag, noprune=True)


def test_push_to_ecr_and_pull_by_digest(registry, engine, session, small):
    """What comes back by its digest is the image; no credential was stored."""
    config = Path.home() / ".docker" / "config.json"
    before = config.read_text() if config.exists() else None
    pushed = push_image(PushOptions(image=small, create=True), session=session)
    engine.images.remove(pushed.uri, noprune=True)
    by_digest = f"{HOST}/sagemaker-dist@{pushed.digest}"
    with pytest.raises(APIError, match="no basic auth"):
        _pulled(engine, pushed.uri)  # of a digest the engine may remember the manifest
    pulled = _pulled(engine, by_digest, auth_config={"username": USER, "password": PASSWORD})

    assert f"{HOST}/sagemaker-dist:1" == pushed.uri
    assert f"Digest: {pushed.digest}" in [said.get("status") for said in pulled]
    assert inspect_image(small).id == inspect_image(by_digest).id
    assert before == (config.read_text() if config.exists() else None)
    engine.images.remove(by_digest, noprune=True)


def _pulled(engine, name: str, **login) -> list[dict]:
    return list(engine.api.pull(name, stream=True, decode=True, **login))


def test_push_without_a_repository(registry, session, small):
    """A repository that does not exist is created only when asked."""
    with pytest.raises(SetupError) as raised:
        push_image(PushOptions(image=small, repository="mine"), session=session)

    assert (("repository",), "not_found") == (raised.value.about, raised.value.kind)
    assert "'mine'" in raised.value.what


def test_push_elsewhere_without_a_login(registry, engine, small):
    """A registry that wants a password says so, with the command; no tag is left."""
    with pytest.raises(SetupError) as raised:
        push_image(PushOptions(image=small, to=f"{ADDRESS}:80/mine"))

    assert "access_denied" == raised.value.kind
    assert raised.value.hint.endswith(f" {ADDRESS}:80")
    assert [small] == [tag for tag in inspect_image(small).tags if "smdist-test-base" not in tag]


def test_push_elsewhere_with_a_login(registry, small, tmp_path, monkeypatch):
    """For other registries, what `docker login` stored is used."""
    login = {"auths": {f"{ADDRESS}:80": {"auth": "QVdTOjEyMzQ1Njc4OTAxMi1hdXRoLXRva2Vu"}}}
    (tmp_path / "config.json").write_text(json.dumps(login))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    pushed = push_image(PushOptions(image=small, to=f"{ADDRESS}:80/some/name:tag"))

    assert f"{ADDRESS}:80/some/name:tag" == pushed.uri
    assert pushed.digest.startswith("sha256:")
