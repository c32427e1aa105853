# SPDX-License-Identifier: Apache-2.0
"""Local jobs with GPUs: what the driver reports, and images without code for them."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sagemaker_dist.errors import OptionError
from sagemaker_dist.packaging import ImageFacts
from sagemaker_dist.runners.local import machine_checks
from sagemaker_dist.runners.local.containers.nvidia_gpus import compute_capabilities, list_gpus


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put a stub of nvidia-smi on the PATH that reports two GPUs."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "--list-gpus) echo 'GPU 0: A100 (UUID: GPU-1)'; echo 'GPU 1: V100 (UUID: GPU-2)' ;;\n"
        "'--query-gpu=compute_cap --format=csv,noheader') echo 8.0; echo 7.0 ;;\n"
        "*) exit 6 ;;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")


def test_gpus_are_reported_in_one_order(driver):
    assert ["GPU-1", "GPU-2"] == list_gpus()
    assert ["8.0", "7.0"] == compute_capabilities()


def test_without_a_driver_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert [] == list_gpus() == compute_capabilities()


@pytest.mark.parametrize(
    ("code", "kind"),
    [("sm_80", "no_gpu_code"), ("", "cpu_build"), ("sm_70 sm_80", None)],
)
def test_an_image_without_code_for_the_gpus_is_refused(driver, monkeypatch, code, kind):
    """The machine has an A100 and a V100."""
    labels = {"sagemaker-dist.framework": "torch", "sagemaker-dist.gpu-code": code}
    image = ImageFacts(
        name="mine:1",
        id="sha256:1",
        tags=(),
        digests=(),
        size_bytes=1,
        architecture="amd64",
        labels=labels,
    )
    monkeypatch.setattr(machine_checks, "connected", lambda: nullcontext(None))
    monkeypatch.setattr(machine_checks, "sweep_leftovers", lambda _: None)
    monkeypatch.setattr(machine_checks, "inspect_image", lambda name, client: image)
    monkeypatch.setattr(machine_checks, "Engine", SimpleNamespace(of=lambda _: None))
    job = SimpleNamespace(
        in_containers=True,
        image="mine:1",
        framework="torch",
        channels=(),
        instance_type="local_gpu",
        hosts=("algo-1",),
    )
    if kind is None:
        machine_checks.check_setup(job)
        return
    with pytest.raises(OptionError) as caught:
        machine_checks.check_setup(job)

    assert kind == caught.value.kind
