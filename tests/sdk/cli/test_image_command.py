# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist image build | inspect`: the job that an image is built for, and what is shown."""

import json

import pytest

from sagemaker_dist.cli import image, main
from sagemaker_dist.packaging import ImageFacts, ImageOptions

CODE = "sm_75 sm_80 compute_120"
LABELS = {
    "version": "0.1.0",
    "framework": "torch",
    "framework-version": "2.13.0",
    "accelerator": "cuda",
    "cuda-version": "13.0",
    "gpu-code": CODE,
    "nccl-version": "2.29.7",
    "nccl-plugin": "/opt/sagemaker_dist/nccl/libnccl-net.so",
    "nvidia-packages": "nvidia-cublas 13.1 (NVIDIA's); nvidia-nccl-cu13 2.29.7 (BSD-3-Clause)",
    "nvidia-bytes": "3000000000",
}


def facts():
    return ImageFacts(
        name="mine:1",
        id="sha256:1",
        tags=("mine:1",),
        digests=(),
        size_bytes=6_000_000_000,
        architecture="amd64",
        labels={f"sagemaker-dist.{name}": value for name, value in LABELS.items()},
    )


@pytest.fixture
def built(monkeypatch):
    """Collect the options of builds, which are not started."""
    options = []

    def build(chosen: ImageOptions) -> ImageFacts:
        options.append(chosen)
        return facts()

    monkeypatch.setattr(image, "build_image", build)
    return options


JOB = """
    entry_point = "train.py"
    instance_type = "{}"
    framework = "{}"
    {}
    [distribution.smdist.dataparallel]
    fusion_bytes = 26214400
    """
ROLE = 'role = "training"'


@pytest.mark.parametrize(
    ("values", "given", "expected"),
    [
        (("ml.p4d.24xlarge", "torch", ROLE), [], ("torch", "cuda")),
        (("ml.c5.xlarge", "torch", ROLE), [], ("torch", None)),
        (("local_gpu", "torch", ""), [], ("torch", "cuda")),
        (("local", "torch", ""), [], ("torch", None)),
        (("ml.p4d.24xlarge", "torch", ROLE), ["--accelerator", "cpu"], ("torch", "cpu")),
        (("ml.p4d.24xlarge", "tensorflow", ROLE), [], ("tensorflow", None)),
    ],
)
def test_an_image_is_built_for_a_job(built, job_file, values, given, expected):
    """The accelerator is what the job's instance type has, unless the command line names one."""
    status = main(["image", "build", job_file(JOB.format(*values)), *given])

    assert 0 == status
    assert [expected] == [(each.framework, each.accelerator) for each in built]


def test_without_a_job_the_accelerator_is_open(built):
    assert 0 == main(["image", "build"])
    assert (None, ()) == (built[0].accelerator, built[0].nccl_plugin)


def test_a_bad_plugin_and_another_fault_are_reported_together(capsys, tmp_path):
    status = main(["image", "build", "--offline", "--nccl-plugin", str(tmp_path / "a.deb")])
    said = capsys.readouterr().err

    assert 2 == status
    for fault in ("offline is True", "there is no such file", "only a CUDA build has NCCL"):
        assert fault in said


def test_what_is_added_is_shown_with_size_and_licence(built, capsys):
    main(["image", "build"])
    said = capsys.readouterr().out

    for part in (f"GPU code      {CODE}\n", "3,000 MB", "nvidia-nccl-cu13 2.29.7 (BSD-3-Clause)"):
        assert part in said


def test_inspect_gives_fields(monkeypatch, capsys):
    monkeypatch.setattr(image, "inspect_image", lambda name: facts())
    main(["image", "inspect", "mine:1", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert CODE.split() == document["gpu_code"]
    assert ("cuda", "13.0", "2.29.7") == (
        document["accelerator"],
        document["cuda_version"],
        document["nccl_version"],
    )
    assert 2 == len(document["nvidia_packages"])
    assert 3_000_000_000 == document["nvidia_bytes"]
