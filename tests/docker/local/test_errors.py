# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with engines and images is said with its cause and its hint."""

import io
import json
import subprocess
import tarfile
import time
from hashlib import sha256

import pytest

from sagemaker_dist import DataParallel, JobError, SetupError, SkewError, TorchDistributed
from sagemaker_dist.packaging.docker_engine import connect

pytestmark = pytest.mark.timeout(300, func_only=True)


def built(engine, image, name, *lines, **options):
    """An image of a few more lines on top of ours."""
    dockerfile = "\n".join([f"FROM {image.name}", *lines])
    engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=name, rm=True, **options)
    return name


@pytest.fixture
def made(engine):
    """Removes the images of a test again."""
    names = []
    yield names
    for name in names:
        engine.images.remove(name, force=True)


def test_no_engine(job, monkeypatch):
    """The error has the socket, and says how to start the engine."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SetupError) as caught:
        job("", instance_count=1).fit()

    assert "no_engine" == caught.value.kind
    assert (
        "no Docker engine answers: /nowhere/docker.sock: No such file or directory. Start it"
        " (`systemctl start docker`, or Docker Desktop), or set DOCKER_HOST to the address of"
        " another engine."
    ) == str(caught.value)


def test_an_engine_on_another_machine(job, monkeypatch):
    """It would not see the data, so nothing is started there."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(SetupError) as caught:
        job("", instance_count=1).fit()

    assert (("DOCKER_HOST",), "other_machine") == (caught.value.about, caught.value.kind)


def test_no_such_image(job):
    """Nothing is pulled unasked."""
    with pytest.raises(SetupError) as caught:
        job("", instance_count=1, image_uri="nobody/has:this").fit()

    assert "not_found" == caught.value.kind
    assert "'nobody/has:this'" in caught.value.what


def test_an_image_of_another_version(job, engine, image, made):
    """Both versions are named before anything starts."""
    made.append(built(engine, image, "sagemaker-dist:9.9.9-torch",
                      "LABEL sagemaker-dist.version=9.9.9"))  # fmt: skip
    with pytest.raises(SkewError) as caught:
        job("", instance_count=1, image_uri=made[0]).fit()

    assert "skew" == caught.value.kind
    assert "9.9.9" in caught.value.what
    assert image.version in caught.value.why


def test_an_image_without_torch(job, engine, image, made):
    """TorchDistributed needs torch; the error has the framework that the image has instead."""
    made.append(built(engine, image, "other:1", "LABEL sagemaker-dist.framework=tensorflow"))
    with pytest.raises(SetupError) as caught:
        job("", instance_count=1, image_uri=made[0], distribution=TorchDistributed()).fit()

    assert (("image_uri",), "conflict") == (caught.value.about, caught.value.kind)
    assert "tensorflow" in caught.value.what


def test_an_image_without_train(job, engine, image, made):
    """The error has the name of the image."""
    made.append(built(engine, image, "no-train:1", "USER root",
                      "RUN rm $(command -v train)", "ENTRYPOINT []"))  # fmt: skip
    with pytest.raises(JobError) as caught:
        job("", instance_count=1, image_uri=made[0]).fit()

    assert "missing_train" == caught.value.cause["kind"]
    assert "no-train:1" in caught.value.cause["why"]


def test_a_port_in_use(job):
    """Who holds the port where ranks meet is named at once, and how to choose another."""
    estimator = job(
        "",
        instance_count=1,
        distribution=DataParallel(processes_per_host=1),
        container_entry_point=["/bin/bash", "-c"],
        container_arguments=["python3 -m http.server 7777 & sleep 2; exec train"],
    )
    with pytest.raises(JobError) as caught:
        estimator.fit()

    assert "7777" in str(caught.value)
    assert "python3" in str(caught.value)
    assert "SMDIST_MASTER_PORT" in str(caught.value)


def test_an_image_for_another_processor(job, engine, made):
    """Both processors are named."""
    foreign = "arm64" if engine.version()["Arch"] == "amd64" else "amd64"
    engine.images.load(saved("foreign:1", foreign))
    made.append("foreign:1")
    with pytest.raises(JobError) as caught:
        job("", instance_count=1, image_uri="foreign:1").fit()

    assert foreign in str(caught.value)
    assert engine.version()["Arch"] in str(caught.value)


def wrong_program():
    """A root file system whose `train` no processor here can run."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in ("usr", "usr/bin", "etc"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        program = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(100)
        member = tarfile.TarInfo("usr/bin/train")
        member.size, member.mode = len(program), 0o755
        archive.addfile(member, io.BytesIO(program))
    return data.getvalue()


def saved(name, architecture):
    """An image as `docker save` writes it."""
    layer = wrong_program()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "layer.tar": layer,
    }
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
def full_engine(tmp_path, monkeypatch):
    """Another engine, whose data root is a small file system; DOCKER_HOST names it."""
    root, socket = tmp_path / "data", tmp_path / "docker.sock"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(root)], check=True)
    words = [f"--data-root={root}", f"--exec-root={tmp_path}/exec", f"--pidfile={tmp_path}/pid"]
    words += [f"--host=unix://{socket}", "--bridge=none", "--iptables=false"]
    command = ["unshare", "--net", "dockerd", *words]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    try:
        yield started(), root
    finally:
        process.terminate()
        process.wait(timeout=120)
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def started():
    for _ in range(600):
        try:
            return connect()
        except SetupError:
            time.sleep(0.1)
    pytest.fail("the engine did not start")


def test_a_full_data_root(job, full_engine):
    """The error has the directory on the full disk: the engine's, not the user's home."""
    client, root = full_engine
    client.api.import_image_from_data(wrong_program(), repository="small", tag="1")
    with pytest.raises(OSError, match="No space left"):
        (root / "filler").write_bytes(bytes(64 << 20))
    try:
        with pytest.raises(JobError) as caught:
            job("", instance_count=1, image_uri="small:1").fit()
    finally:
        (root / "filler").unlink()
        client.close()

    assert "disk_full" == caught.value.cause["kind"]
    assert str(root) in caught.value.cause["why"]
