# SPDX-License-Identifier: Apache-2.0
"""The training image for GPUs, from stub wheels of torch's CUDA build and of NCCL."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import ImageOptions, build_image, inspect_image

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
CODE = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
# The stub of torch is installed over the files of the CPU build.
WITHOUT_TORCH = """
FROM {image}
RUN rm -rf $(python3 -c 'import site; print(site.getsitepackages()[0])')/torch-*.dist-info
"""
LOADED = "import ctypes; ctypes.CDLL('libnccl-net.so'); print('loaded')"


@pytest.fixture(scope="module")
def made(engine):
    """Collects the names of images, and removes them with their images."""
    names = []
    yield names
    for name in reversed(names):
        if engine.images.list(name=name):
            engine.images.remove(name, force=True)


@pytest.fixture(scope="module")
def derive(engine, tmp_path_factory, made):
    """Makes an image by a few lines of Dockerfile."""

    def make(name: str, lines: str) -> str:
        folder = tmp_path_factory.mktemp("derived")
        (folder / "Dockerfile").write_text(lines)
        made.append(name)
        engine.images.build(path=str(folder), tag=name, forcerm=True, network_mode="none")
        return name

    return make


@pytest.fixture(scope="module")
def base(derive, image):
    return derive("smdist-test-no-torch:1", WITHOUT_TORCH.format(image=image.name))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """Compiles a library that has the name of NCCL's plugin."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "a.c").write_text("int ncclNetPlugin_v10;\n")
    library = folder / "libnccl-net-ofi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "a.c"], check=True)
    return library


@pytest.fixture(scope="module")
def cuda_image(offline, base, plugin, made):
    name = "smdist-test-cuda:1"
    made.append(name)
    changes = {"base_image": base, "tag": name}
    return build_image(
        ImageOptions(**{**offline, **changes}, accelerator="cuda", nccl_plugin=(plugin,))
    )


def test_the_image_records_what_it_holds(cuda_image):
    """Labels tell the GPUs with code, NCCL, its plugin, and NVIDIA's packages with licences."""
    assert ("cuda", "13.0", CODE) == (
        cuda_image.accelerator,
        cuda_image.cuda_version,
        cuda_image.gpu_code,
    )
    assert ("2.29.7", "/opt/sagemaker_dist/nccl/libnccl-net-ofi.so") == (
        cuda_image.nccl_version,
        cuda_image.nccl_plugin,
    )
    assert ("nvidia-nccl-cu13 2.29.7 (LicenseRef-NVIDIA-Proprietary)",) == (
        cuda_image.nvidia_packages
    )
    assert 6 < cuda_image.nvidia_bytes < 1000  # the stub of a library, and its metadata
    assert not cuda_image.is_derived


def test_nccl_finds_its_plugin(engine, cuda_image):
    """The loader finds the name that NCCL looks for."""
    said = engine.containers.run(
        cuda_image.name, ["python3", "-c", LOADED], remove=True, network_mode="none"
    )

    assert b"loaded" == said.strip()


def test_an_image_on_ours_is_not_taken_for_ours(cuda_image, derive):
    """It has the same labels, and may hold another torch."""
    name = derive("smdist-test-derived-cuda:1", f"FROM {cuda_image.name}\nRUN echo 1 > /new")
    found = inspect_image(name)

    assert (CODE, True) == (found.gpu_code, found.is_derived)


def test_a_cpu_build_is_known_as_such(image):
    assert ("cpu", (), None) == (image.accelerator, image.gpu_code, image.nccl_version)
    assert not image.is_derived


def test_another_build_than_requested_is_refused(offline, cuda_image):
    """The base image holds a CUDA build, and a CPU build was requested."""
    changes = {"base_image": cuda_image.name, "tag": "smdist-test-scratch:1"}
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(**{**offline, **changes}, accelerator="cpu"))

    assert "conflict" == raised.value.kind


@pytest.fixture(scope="module")
def install(engine, offline):
    """Runs the step that installs NCCL's plugin in the base image; returns what it prints."""

    def run(folder) -> str:
        steps = f"{ROOT}/container/image/steps.sh"
        command = "sh /mnt/steps.sh plugin 2>&1; readlink /opt/sagemaker_dist/nccl/libnccl-net.so"
        said = engine.containers.run(
            offline["base_image"],
            ["sh", "-c", f"{command} || true"],
            remove=True,
            network_mode="none",
            volumes={
                steps: {"bind": "/mnt/steps.sh", "mode": "ro"},
                str(folder): {"bind": "/mnt/plugin", "mode": "ro"},
            },
        )
        return said.decode()

    return run


def package(folder, library, depends: str) -> None:
    """Write a Debian package with a library below /opt/amazon."""
    tree = folder.parent / "tree"
    place = tree / "opt/amazon/ofi-nccl/lib"
    place.mkdir(parents=True)
    shutil.copy(library, place / "libnccl-net.so")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(
        "Package: libnccl-ofi\nVersion: 1\nArchitecture: all\nMaintainer: a test <a@b.c>\n"
        f"Description: a stub\n{depends}"
    )
    command = ["dpkg-deb", "--build", tree, folder / "libnccl-ofi.deb"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "plugin"
    made.mkdir()
    return made


def test_a_package_is_installed(install, plugin, folder):
    package(folder, plugin, "")

    assert "/opt/amazon/ofi-nccl/lib/libnccl-net.so" == install(folder).strip()


def test_a_package_without_what_it_depends_on_is_refused(install, plugin, folder):
    package(folder, plugin, "Depends: libfabric1-aws\n")
    said = install(folder)

    assert "sagemaker-dist kind: bad_plugin" in said
    assert "libfabric1-aws" in said


def test_a_tarball_is_unpacked(install, plugin, folder):
    with tarfile.open(folder / "aws-ofi-nccl.tar.gz", "w:gz") as archive:
        archive.add(plugin, "lib/libnccl-net-ofi.so")

    assert "/opt/sagemaker_dist/nccl/lib/libnccl-net-ofi.so" == install(folder).strip()


def test_a_plugin_that_cannot_be_loaded_is_refused(install, tmp_path, folder):
    """It has the form of a library, and needs one that the image does not have."""
    (tmp_path / "a.c").write_text("int fi_getinfo(void) { return 0; }\n")
    (tmp_path / "b.c").write_text("int fi_getinfo(void);\nint f(void) { return fi_getinfo(); }\n")
    needed, compiler = tmp_path / "libfabric.so.1", ["cc", "-shared", "-fPIC", "-o"]
    named = f"-Wl,-soname,{needed.name}"
    subprocess.run([*compiler, needed, named, tmp_path / "a.c"], check=True)
    subprocess.run([*compiler, folder / "libnccl-net-ofi.so", tmp_path / "b.c", needed], check=True)
    said = install(folder)

    assert "sagemaker-dist kind: bad_plugin" in said
    assert "libfabric.so.1" in said
