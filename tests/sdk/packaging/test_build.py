# SPDX-License-Identifier: Apache-2.0
"""Choosing a docker command, running it, and reading its output; without a Docker engine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.docker_cli import Builder, exporter, find_builder, run
from sagemaker_dist.packaging.image_build import fault, label_arguments, last_lines

FAILED = """
#1 [internal] load build definition from Dockerfile
#1 sha256:73c2
#1 DONE 0.0s
#8 [stage-2 2/4] RUN sh steps.sh framework
#8 0.595 ERROR: No matching distribution found for torch==2.13.0
------
 > [stage-2 2/4] RUN sh steps.sh framework:
------
executor failed running [/bin/sh -c sh steps.sh framework]: exit code: 1
"""


@pytest.fixture
def docker(tmp_path):
    """Return a function that writes a stub docker command of a given version."""

    def write(folder: str, version: str, *, buildx: bool = False) -> str:
        path = tmp_path / folder / "docker"
        path.parent.mkdir()
        path.write_text(
            f'#!/bin/sh\n[ "$1" = buildx ] && {{ {"echo ok" if buildx else "exit 1"}; exit; }}\n'
            f'echo "Docker version {version}, build 1"\n'
        )
        path.chmod(0o755)
        return str(path.parent)

    return write


def test_buildx_is_taken(docker):
    """A docker command with the buildx plugin is chosen."""
    at = docker("a", "28.2.2", buildx=True)

    assert (f"{at}/docker", "buildx", "build", "--load") == find_builder(at).command


def test_the_next_docker_may_have_it(docker):
    """The first docker command on the PATH that has BuildKit is chosen."""
    first, second = docker("a", "28.2.2"), docker("b", "20.10.24+dfsg1")
    found = find_builder(os.pathsep.join([first, "", second]))

    assert (f"{second}/docker", "build") == found.command
    assert {"DOCKER_BUILDKIT": "1"} == found.environment


@pytest.mark.parametrize("version", ["19.3.5", "23.0.1", "28.2.2"])
def test_no_docker_that_builds(docker, version):
    """If no docker command has BuildKit, the error names those that were tried."""
    at = docker("a", version)
    with pytest.raises(SetupError) as raised:
        find_builder(at)

    assert "no_buildx" == raised.value.kind
    assert f"{at}/docker" in raised.value.why


def test_no_docker_at_all(tmp_path):
    """Without any docker command, the kind of the error is another."""
    with pytest.raises(SetupError) as raised:
        find_builder(str(tmp_path))

    assert "no_docker" == raised.value.kind


def test_output_is_shown_and_kept(capfd):
    """The build's output is printed at once, and its last lines are returned."""
    program = "import sys; print(sys.argv[1]); print('said', file=sys.stderr); sys.exit(7)"
    status, lines = run(Builder(command=(sys.executable, "-c", program)), [])

    assert (7, ["--progress=plain", "said"]) == (status, sorted(lines))
    assert "said" in capfd.readouterr().err


def test_telling_lines():
    """The error of a failed build has its last lines without BuildKit's progress."""
    last = last_lines([line.strip() for line in FAILED.splitlines() if line])

    assert (
        "[internal] load build definition from Dockerfile"
        " / ERROR: No matching distribution found for torch==2.13.0"
        " / executor failed running [/bin/sh -c sh steps.sh framework]: exit code: 1"
    ) == last


def test_a_wheel_that_is_not_there():
    """A missing wheel is named, with the pip command that downloads it."""
    error = fault(1, [line.strip() for line in FAILED.splitlines() if line], "/data")

    assert "missing_wheel" == error.kind
    assert (
        "the image was not built: pip found no torch==2.13.0 for the base image's Python."
        " Download it into the wheelhouse (pip download -d DIR 'torch==2.13.0'), or correct"
        " --index-url or the version."
    ) == str(error)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "#2 [internal] load metadata for docker.io/library/python:3.11-slim-bookworm:",
            "no_base_image",
        ),
        ("#8 3.1 Temporary failure in name resolution", "no_name_server"),
        ("#8 3.1 ssl.SSLError: CERTIFICATE_VERIFY_FAILED", "untrusted_certificate"),
        ("#8 3.1 something else", "failed_step"),
    ],
)
def test_other_faults_of_a_build(line, kind):
    assert kind == fault(1, [line, "executor failed"], "/data").kind


def test_our_own_faults():
    """An error of a Dockerfile's step arrives as kind, what, why and hint."""
    steps = Path(__file__).parents[3] / "container/image/steps.sh"
    done = subprocess.run(
        ["sh", str(steps), "check"],
        env={**os.environ, "FRAMEWORK": "jax"},
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [f"#9 0.31 {line}" for line in done.stderr.splitlines()]
    error = fault(done.returncode, [*lines, "executor failed"], "/data")

    assert {
        "kind": "unknown",
        "about": None,
        "what": "FRAMEWORK is 'jax'",
        "why": "there are images for two frameworks",
        "hint": "Choose torch or tensorflow",
    } == error.as_dict()


def test_full_disk():
    """A full disk is reported with the engine's directory, whichever step failed."""
    error = fault(1, ["write /a: No space left on device", "sagemaker-dist: a: b. c."], "/data")

    assert "disk_full" == error.kind
    assert "/data" in error.why


@pytest.mark.parametrize(
    ("framework", "offline", "wheel", "package"),
    [
        ("torch", "", "", "torch"),
        ("tensorflow", "", "", "tensorflow-cpu"),
        ("tensorflow", "1", "", "tensorflow-cpu"),
        ("tensorflow", "1", "tensorflow_cpu-2.21.0-cp311.whl", "tensorflow-cpu"),
        ("tensorflow", "1", "tensorflow-2.21.0-cp311.whl", "tensorflow"),
    ],
)
def test_steps_name_the_wheel_of_the_framework(tmp_path, framework, offline, wheel, package):
    """TensorFlow's wheel is the one for CPUs, unless the wheelhouse has only the other."""
    (tmp_path / (wheel or "click-8.5.1-py3-none-any.whl")).touch()
    if platform.machine() != "x86_64" or Path("/usr/local/cuda").exists():
        package = framework
    steps = Path(__file__).parents[3] / "container/image/steps.sh"
    done = subprocess.run(
        ["sh", str(steps), "package", str(tmp_path)],
        env={**os.environ, "FRAMEWORK": framework, "OFFLINE": offline},
        capture_output=True,
        text=True,
    )

    assert package == done.stdout.strip()


@pytest.mark.parametrize(
    ("framework", "accelerator", "available", "installed"),
    [
        ("torch", "cpu", ["2.13.0+cpu"], ["torch==2.13.0+cpu"]),
        ("torch", "cuda", ["2.13.0"], ["torch==2.13.0,!=2.13.0+cpu"]),
        ("torch", "", ["2.13.0+cpu", "2.13.0"], ["torch==2.13.0+cpu"]),
        ("torch", "", ["2.13.0"], ["torch==2.13.0+cpu", "torch==2.13.0"]),
        ("torch", "cpu", ["2.13.0"], ["torch==2.13.0+cpu"]),  # fails
        ("tensorflow", "cpu", ["2.13.0"], ["tensorflow-cpu==2.13.0"]),
    ],
)
def test_steps_install_the_build_for_the_accelerator(
    tmp_path, framework, accelerator, available, installed
):
    """Without an accelerator, a CPU build is preferred; with one, no other build is taken."""
    if framework == "tensorflow" and platform.machine() != "x86_64":
        installed = ["tensorflow==2.13.0"]
    wanted = [f"{framework}=={version}" for version in available]
    wanted += [f"{framework}-cpu==2.13.0", "torch==2.13.0,!=2.13.0+cpu"]
    pip = tmp_path / "pip3"
    pip.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'log')!r}, 'a').write("
        f"sys.argv[-1] + '\\n')\nsys.exit(sys.argv[-1] not in {wanted})\n"
    )
    pip.chmod(0o755)
    steps = Path(__file__).parents[3] / "container/image/steps.sh"
    done = subprocess.run(
        ["sh", str(steps), "install_build"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "FRAMEWORK": framework,
            "FRAMEWORK_VERSION": "2.13.0",
            "ACCELERATOR": accelerator,
            "OFFLINE": "",
        },
        capture_output=True,
    )

    assert installed == (tmp_path / "log").read_text().splitlines()
    assert (done.returncode == 0) == (installed[-1] in wanted)


@pytest.mark.parametrize("plugin", [True, False])
def test_facts_are_read_from_the_framework(tmp_path, plugin):
    """Which GPUs there is code for, and NVIDIA's packages with licence and size."""
    facts = Path(__file__).parents[3] / "container/image/framework_facts.py"
    site, library = tmp_path / "site", tmp_path / "libnccl-net.so"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("from torch import cuda, version\n")
    (site / "torch" / "version.py").write_text("cuda = '13.0'\n")
    (site / "torch" / "cuda.py").write_text("get_arch_list = lambda: ['sm_75', 'compute_120']\n")
    info = site / "nvidia_nccl_cu13-2.29.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: nvidia-nccl-cu13\nVersion: 2.29.7\n"
        "License-Expression: LicenseRef-NVIDIA-Proprietary\n"
    )
    (info / "RECORD").write_text("nvidia/libnccl.so.2,,\n")
    (site / "nvidia").mkdir()
    (site / "nvidia" / "libnccl.so.2").write_bytes(bytes(1000))
    if plugin:
        library.touch()
    code = (
        f"import pathlib, runpy, sys; sys.path.insert(0, {str(site)!r});"
        f" module = runpy.run_path({str(facts)!r});"
        f" module['facts'].__globals__['PLUGIN'] = pathlib.Path({str(library)!r});"
        " import json; print(json.dumps(module['facts']('torch')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )

    assert {
        "accelerator": "cuda",
        "cuda-version": "13.0",
        "gpu-code": "sm_75 compute_120",
        "nccl-version": "2.29.7",
        "nccl-plugin": str(library) if plugin else "",
        "nvidia-packages": "nvidia-nccl-cu13 2.29.7 (LicenseRef-NVIDIA-Proprietary)",
        "nvidia-bytes": "1000",
    } == json.loads(done.stdout)


def test_facts_become_labels():
    facts = {"accelerator": "cuda", "gpu-code": "sm_75 compute_120"}

    assert [
        "--label=sagemaker-dist.accelerator=cuda",
        "--label=sagemaker-dist.gpu-code=sm_75 compute_120",
    ] == label_arguments(facts)


def test_facts_are_exported_without_loading_an_image():
    builder = Builder(command=("docker", "buildx", "build", "--load"))

    assert ("docker", "buildx", "build") == exporter(builder).command


def test_steps_speak_the_form_that_is_read():
    """All errors of the Dockerfile's steps are printed by one function, in the format that we
    parse.
    """
    text = (Path(__file__).parents[3] / "container/image/steps.sh").read_text()

    assert 'echo "sagemaker-dist: $1: $2. $3." >&2' in text
    assert 1 == text.count("exit 1")
