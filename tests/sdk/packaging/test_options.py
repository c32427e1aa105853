# SPDX-License-Identifier: Apache-2.0
"""Options of building and pushing images, and docker's arguments."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import sagemaker_dist
from sagemaker_dist.contract import hyperparameter_format
from sagemaker_dist.errors import OptionError, OptionErrors
from sagemaker_dist.packaging import FRAMEWORKS, ImageOptions, PushOptions, default_tag
from sagemaker_dist.packaging.image_build import arguments

ROOT = Path(__file__).parents[3]


def test_default_tag():
    """The name of an image has version and framework."""
    assert f"sagemaker-dist:{sagemaker_dist.__version__}-torch" == default_tag("torch")
    with pytest.raises(OptionError) as raised:
        default_tag("pytorch")

    assert (("framework",), "unknown") == (raised.value.about, raised.value.kind)


def test_dockerfile_has_our_defaults():
    """`docker build` without our command gives the same image."""
    text = (ROOT / "container" / "Dockerfile").read_text()
    defaults = {match[1]: match[2] for match in re.finditer(r"^ARG (\w+)=(.*)$", text, re.M)}

    assert ImageOptions().base_image == defaults["BASE_IMAGE"]
    assert FRAMEWORKS["torch"].default == defaults["FRAMEWORK_VERSION"]
    assert sagemaker_dist.__version__ == defaults["VERSION"]
    assert str(hyperparameter_format.VERSION) == defaults["WIRE"]


@pytest.mark.parametrize(
    ("framework", "package"), [("torch", "torch"), ("tensorflow", "tensorflow-cpu")]
)
def test_framework_versions_are_those_of_the_runtime(framework, package):
    """The versions of an image are those that the runtime's extra requires."""
    text = (ROOT / "container" / "pyproject.toml").read_text()
    series = FRAMEWORKS[framework].series
    first, (major, minor) = series[0].rstrip("."), series[-1].split(".")[:2]

    assert f'"{package}>={first},<{major}.{int(minor) + 1}"' in text
    assert FRAMEWORKS[framework].default.startswith(series[-1])


@pytest.mark.parametrize("version", ["2.15.1", "2.22.0"])
def test_a_tensorflow_that_the_binding_does_not_know(version):
    with pytest.raises(OptionError) as raised:
        ImageOptions(framework="tensorflow", framework_version=version)

    assert ("framework_version",) == raised.value.about
    assert "2.18.0" == (
        ImageOptions(framework="tensorflow", framework_version="2.18.0").exact_version
    )


def test_every_fault_at_once(tmp_path):
    """All faults are reported together, each with its hint."""
    with pytest.raises(OptionErrors) as raised:
        ImageOptions(
            framework="tensorflw",
            offline=True,
            ca=tmp_path / "none.pem",
            index_url="https://index.example",
            network="",
        )

    assert [
        (("framework",), "unknown"),
        (("offline",), "option"),
        (("ca",), "option"),
        (("index_url",), "option"),
        (("network",), "option"),
    ] == [(fault.about, fault.kind) for fault in raised.value.faults]


@pytest.mark.parametrize("version", ["2", "2.13", "2.13.*", "2.12.1"])
def test_framework_version(version):
    """A version is exact, and of a series that the runtime is compiled for."""
    with pytest.raises(OptionError) as raised:
        ImageOptions(framework_version=version)

    assert ("framework_version",) == raised.value.about
    assert "2.13.1" == ImageOptions(framework_version="2.13.1").exact_version


def test_empty_wheelhouse(tmp_path):
    """A wheelhouse without wheels is refused before anything starts."""
    with pytest.raises(OptionError) as raised:
        ImageOptions(wheelhouse=tmp_path)

    assert ("wheelhouse",) == raised.value.about


def test_what_docker_is_told(tmp_path):
    """Each option reaches docker; secrets are passed as files."""
    authority = tmp_path / "ca.pem"
    authority.touch()
    passed = arguments(
        ImageOptions(
            base_image="base",
            build_image="build",
            accelerator="cuda",
            compat="horovod",
            tag="mine:1",
            ca=authority,
            network="host",
            platform="linux/arm64",
        ),
        tmp_path / "pip.conf",
    )

    assert [
        "--build-arg=BASE_IMAGE=base",
        "--build-arg=BUILD_IMAGE=build",
        "--build-arg=FRAMEWORK=torch",
        f"--build-arg=FRAMEWORK_VERSION={FRAMEWORKS['torch'].default}",
        "--build-arg=ACCELERATOR=cuda",
        "--build-arg=COMPAT=horovod",
        "--build-arg=OFFLINE=",
        f"--build-arg=VERSION={sagemaker_dist.__version__}",
        f"--build-arg=WIRE={hyperparameter_format.VERSION}",
        "--network=host",
        "--platform=linux/arm64",
        f"--secret=id=ca,src={authority}",
        f"--secret=id=pip,src={tmp_path}/pip.conf",
        "--tag=mine:1",
    ] == passed


def test_offline_steps_have_no_network(tmp_path):
    """The steps of an offline build have no network."""
    (tmp_path / "a-1-py3-none-any.whl").touch()

    assert "--network=none" in arguments(ImageOptions(wheelhouse=tmp_path, offline=True))


def test_options_say_what_they_mean():
    """The docstrings describe every option."""
    for options in (ImageOptions, PushOptions):
        missing = [f.name for f in fields(options) if f"{f.name}: " not in (options.__doc__ or "")]

        assert [] == [name for name in missing if (options, name) != (PushOptions, "framework")]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"to": "localhost:5000/name", "create": True}, "conflict"),
        ({"to": "localhost:5000/name", "repository": "mine"}, "conflict"),
        ({"to": "name"}, "option"),
    ],
)
def test_push_options(wrong, kind):
    """`to` names a registry; `to` and the options for ECR exclude each other."""
    with pytest.raises(OptionError) as raised:
        PushOptions(**wrong)

    assert (("to",), kind) == (raised.value.about, raised.value.kind)
