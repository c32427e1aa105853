# SPDX-License-Identifier: Apache-2.0
"""The command: help, errors without a traceback, exit statuses."""

import subprocess
import sys

import pytest

from sagemaker_dist.cli import main


@pytest.mark.parametrize("step", [[], ["image"], ["image", "build"], ["image", "push"]])
def test_help(capsys, step):
    """Every level has help."""
    with pytest.raises(SystemExit) as raised:
        main([*step, "--help"])

    assert 0 == raised.value.code
    assert f"usage: {' '.join(['sagemaker-dist', *step])}" in capsys.readouterr().out


def test_unknown_option(capsys):
    """What argparse does not understand ends with 2."""
    with pytest.raises(SystemExit) as raised:
        main(["image", "build", "--framework", "jax"])

    assert 2 == raised.value.code
    assert "choose from" in capsys.readouterr().err


def test_faults_of_a_request(capsys):
    """All faults are told together, on standard error, and nothing starts."""
    status = main(["image", "build", "--offline", "--framework-version", "2"])
    said = capsys.readouterr().err

    assert 2 == status
    assert said.startswith("sagemaker-dist: 2 faults in this request:\n  1. framework_version is")


def test_no_engine(capsys, monkeypatch):
    """Without an engine, one message and 1."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    status = main(["image", "inspect"])
    said = capsys.readouterr().err

    assert 1 == status
    assert said.startswith("sagemaker-dist: no Docker engine answers")
    assert "Traceback" not in said


def test_no_profile(capsys):
    """AWS settings that do not exist are an error of ours as well."""
    status = main(["image", "push", "--profile", "nobody"])

    assert 1 == status
    assert "(nobody)" in capsys.readouterr().err


def test_starts_without_aws_and_docker():
    """The command's help loads neither boto3 nor docker-py."""
    code = (
        "import sys, sagemaker_dist.cli\n"
        "print([name for name in ('boto3', 'docker', 'sagemaker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert "[]\n" == done.stdout
