# SPDX-License-Identifier: Apache-2.0
"""Files of NCCL's network plugin, and the choice of the accelerator."""

import tarfile

import pytest

from sagemaker_dist.errors import OptionError, OptionErrors
from sagemaker_dist.packaging import ImageOptions
from sagemaker_dist.packaging.context import build_context
from sagemaker_dist.packaging.nccl_plugin import plugin_faults


@pytest.fixture
def files(tmp_path):
    """Return files of each form: a package, a tarball and a library."""
    package, library = tmp_path / "libnccl-ofi_1.16_amd64.deb", tmp_path / "libnccl-net-ofi.so"
    package.write_bytes(b"!<arch>\nrest")
    library.write_bytes(b"\x7fELF rest")
    tarball = tmp_path / "aws-ofi-nccl.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(library, "lib/libnccl-net.so")
    return [package, tarball, library]


def test_three_forms_are_taken(files):
    assert [] == list(plugin_faults(files))
    assert tuple(files) == ImageOptions(accelerator="cuda", nccl_plugin=tuple(files)).nccl_plugin


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.deb", None, "there is no such file"),
        ("a.deb", b"nothing", "it is not a Debian package"),
        ("a.tar.gz", b"nothing", "it is not a tarball"),
        ("libnccl-net.so", b"nothing", "it is not a shared library"),
        ("a.zip", b"PK", "its name is not that of a package"),
        ("libfabric.so.1", b"\x7fELF", "its name is not that of a package"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, name, content, problem):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    (fault,) = plugin_faults([file])

    assert ("nccl_plugin", 0) == fault.about
    assert fault.why.startswith(problem)


def test_a_tarball_without_the_library_is_refused(tmp_path):
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as archive:
        archive.add(__file__, "readme.txt")
    (fault,) = plugin_faults([file])

    assert "libnccl-net" in fault.why


def test_two_files_of_one_name_are_refused(tmp_path, files):
    other = tmp_path / "other" / files[0].name
    other.parent.mkdir()
    other.write_bytes(files[0].read_bytes())
    (fault,) = plugin_faults([files[0], other])

    assert ("conflict", ("nccl_plugin",)) == (fault.kind, fault.about)


def test_the_context_holds_the_files(files):
    with build_context(None, files) as context:
        found = sorted(each.name for each in (context / "plugin").iterdir())

    assert sorted(each.name for each in files) == found


@pytest.mark.parametrize("accelerator", [None, "cpu"])
def test_a_plugin_without_nccl_is_refused(files, accelerator):
    with pytest.raises(OptionError) as raised:
        ImageOptions(accelerator=accelerator, nccl_plugin=tuple(files))

    assert (("nccl_plugin",), "no_effect") == (raised.value.about, raised.value.kind)


def test_an_unknown_accelerator():
    with pytest.raises(OptionError) as raised:
        ImageOptions(accelerator="cud")

    assert (("accelerator",), "unknown") == (raised.value.about, raised.value.kind)


def test_every_fault_at_once(tmp_path):
    """TensorFlow's CUDA build comes with the base image."""
    with pytest.raises(OptionErrors) as raised:
        ImageOptions(
            framework="tensorflow",
            accelerator="cuda",
            nccl_plugin=(tmp_path / "a.deb", tmp_path / "b.zip"),
        )

    assert [
        (("accelerator",), "unsupported"),
        (("nccl_plugin", 0), "option"),
        (("nccl_plugin", 1), "option"),
    ] == [(fault.about, fault.kind) for fault in raised.value.faults]
