# SPDX-License-Identifier: Apache-2.0
"""How the training image is built: what is refused, what stays out, and a full disk."""

import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from socket import AF_UNIX, socket
from time import monotonic, sleep

import docker
import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import ImageOptions, build_image
from sagemaker_dist.packaging.context import build_context
from sagemaker_dist.packaging.docker_cli import find_builder, run
from sagemaker_dist.packaging.image_build import arguments

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def scratch_tag(engine):
    """A tag of its own, removed with its image afterwards."""
    tag = "smdist-test-scratch:1"
    yield tag
    if engine.images.list(name=tag):
        engine.images.remove(tag, force=True)


@pytest.fixture
def derived(engine, tmp_path):
    """Makes an image by a few lines of Dockerfile, without BuildKit, and removes it."""
    made = []

    def make(lines: str) -> str:
        (tmp_path / "Dockerfile").write_text(lines)
        tag = f"smdist-test-derived:{len(made)}"
        engine.images.build(path=str(tmp_path), tag=tag, forcerm=True, network_mode="none")
        made.append(tag)
        return tag

    yield make
    for tag in made:
        engine.images.remove(tag, force=True)


def built_by_hand(options: ImageOptions, *more: str) -> tuple[int, str]:
    """What docker says of the Dockerfile, with arguments that ImageOptions would refuse."""
    with build_context(options.wheelhouse) as context:
        file = f"--file={context}/container/Dockerfile"
        words = [*arguments(options), *more, file, str(context)]
        status, lines = run(find_builder(), words)
    return status, "\n".join(lines)


def test_builds_again_from_what_is_cached(image, offline):
    """A second build of the same files gives the same image."""
    assert image.id == build_image(ImageOptions(**offline)).id


def test_unknown_framework(offline):
    """The Dockerfile itself refuses a framework that it does not know."""
    status, text = built_by_hand(ImageOptions(**offline), "--build-arg=FRAMEWORK=jax")

    assert status
    assert "sagemaker-dist: FRAMEWORK is 'jax': there are images for two frameworks." in text


def test_stale_version(image, offline, scratch_tag):
    """Labels cannot say another version than the wheels have."""
    options = ImageOptions(**offline, tag=scratch_tag)
    status, text = built_by_hand(options, "--build-arg=VERSION=9.9.9")

    assert status
    assert "sagemaker-dist: VERSION is '9.9.9': the wheels are sagemaker_dist-" in text


def test_base_with_another_framework_version(derived, offline, scratch_tag):
    """A framework that the base holds is kept, so its version has to be the one asked for."""
    metadata = "/usr/local/lib/python3.11/dist-packages/torch-2.9.1.dist-info"
    base = derived(
        f"FROM smdist-test-base\n"
        f"RUN mkdir -p {metadata} && printf 'Name: torch\\nVersion: 2.9.1\\n' > {metadata}/METADATA"
    )
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(**{**offline, "base_image": base}, tag=scratch_tag))

    assert "conflict" == raised.value.kind
    assert (
        "the image to build on holds torch 2.9.1: torch 2.13.0 was asked for. Ask for 2.9.1, or"
        " build on an image without torch."
    ) == str(raised.value)


def test_base_with_the_framework(engine, image, offline, scratch_tag):
    """A base that holds the framework in the version asked for keeps it as it is.

    With the package named horovod, ranks of a script for Horovod start in it.
    """
    options = {**offline, "base_image": image.name, "compat": "horovod", "tag": scratch_tag}
    built = build_image(ImageOptions(**options))
    script = (
        "import horovod.torch as hvd, torch; hvd.init();"
        "print('sum', hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
    )
    words = ["horovodrun", "-np", "2", "python3", "-c", script]
    said = engine.containers.run(scratch_tag, words, remove=True).decode()

    assert built.size_bytes - image.size_bytes < 50_000_000
    assert 2 == said.count("sum 2.0")


def test_horovod_itself_is_not_replaced(derived, image, offline, scratch_tag):
    metadata = "/usr/local/lib/python3.11/dist-packages/horovod-0.28.1.dist-info"
    base = derived(
        f"FROM {image.name}\n"
        f"RUN mkdir -p {metadata} && printf 'Metadata-Version: 2.1\\nName: horovod\\n"
        f"Version: 0.28.1\\n' > {metadata}/METADATA"
    )
    options = {**offline, "base_image": base, "compat": "horovod", "tag": scratch_tag}
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(**options))

    assert "conflict" == raised.value.kind
    assert "horovod" in raised.value.what


def test_offline_without_a_compiler(offline, scratch_tag):
    """An offline build says that it cannot fetch a compiler."""
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(**{**offline, "build_image": None}, tag=scratch_tag))

    assert "no_compiler" == raised.value.kind
    assert "offline" in raised.value.why


def test_certificates_are_trusted_and_left_out(
    engine, image, offline, derived, tmp_path, scratch_tag, capfd
):
    """The CA file reaches the steps that download; no layer of the image keeps it."""
    mark = f"mark {os.urandom(16).hex()}"
    authority = tmp_path / "ca.pem"
    authority.write_text(f"# {mark}\n")
    base = derived(f"FROM {image.name}\nRUN echo {os.urandom(8).hex()} > /new")  # nothing is cached
    built = build_image(
        ImageOptions(**{**offline, "base_image": base}, ca=authority, tag=scratch_tag)
    )

    assert "trust the certificates of the secret 'ca'" in capfd.readouterr().err
    assert {"SMDIST_INIT"} == _held(engine.images.get(built.id), {mark, "SMDIST_INIT"})


def _held(image, marks: set[str]) -> set[str]:
    """Which of these the layers of an image hold; a saved image holds them uncompressed."""
    found, kept = set(), b""
    for chunk in image.save():
        found |= {mark for mark in marks if mark.encode() in kept + chunk}
        kept = chunk[-100:]
    return found


@pytest.fixture
def small_engine(tmp_path_factory):
    """An engine with a network namespace and a data root of its own, this one of 420 MB."""
    folder = tmp_path_factory.mktemp("engine")
    root, host = folder / "data", f"unix://{folder}/socket"
    root.mkdir()
    words = [f"--data-root={root}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    words += [f"--host={host}", "--bridge=none", "--iptables=false"]
    with _mounted(root), (folder / "log").open("w") as log:
        process = subprocess.Popen(["unshare", "--net", "dockerd", *words], stdout=log, stderr=log)
        try:
            with closing(_answering(host)) as client:
                yield client, host, root
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def _mounted(root: Path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=420m", "tmpfs", root], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--recursive", root], check=True)


def _answering(host: str) -> docker.DockerClient:
    deadline = monotonic() + 60
    while True:
        with socket(AF_UNIX) as probe:
            if not probe.connect_ex(host.removeprefix("unix://")):
                return docker.DockerClient(base_url=host)
        assert monotonic() < deadline, "no engine"
        sleep(0.2)


def test_full_disk(small_engine, engine, offline, monkeypatch):
    """Where the engine's disk is full, the error says which directory that is."""
    client, host, root = small_engine
    client.images.load(b"".join(engine.images.get(offline["base_image"]).save(named=True)))
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(**{**offline, "build_image": None}))

    assert "disk_full" == raised.value.kind
    assert str(root) in raised.value.why


def test_interrupted(offline, tmp_path, scratch_tag):
    """Ctrl-C ends the build at once and leaves no directory behind."""
    values = {name: str(value) for name, value in offline.items() if name != "offline"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    program = [sys.executable, "-m", "sagemaker_dist.cli", "image", "build", *words, "--offline"]
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    with subprocess.Popen(
        [*program, f"--tag={scratch_tag}"],
        env={**os.environ, "TMPDIR": str(temporary), "HOME": str(home)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read().decode()

    assert 130 == process.returncode
    assert "Traceback" not in said
    assert [] == list(temporary.iterdir())
    assert not (home / ".sagemaker-dist" / "image-context").exists()
