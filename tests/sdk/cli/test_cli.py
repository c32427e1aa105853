# SPDX-License-Identifier: Apache-2.0
"""Test the command as a whole: help, errors without a traceback, exit statuses, completion."""

import io
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from sagemaker_dist.cli import main, screen
from sagemaker_dist.cli.root import root

STEPS = [
    [],
    *([name] for name in root.list_commands(click.Context(root))),
    ["image", "build"],
    ["image", "push"],
    ["image", "inspect"],
    ["instances", "list"],
    ["instances", "show"],
    ["instances", "refresh"],
]


@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_help(capsys, step):
    """Every level has help that fits in 80 columns and says what each option is for."""
    status = main([*step, "--help"])
    said = capsys.readouterr().out

    assert 0 == status
    assert said.startswith(f"Usage: {' '.join(['sagemaker-dist', *step])} ")
    assert [] == [line for line in said.splitlines() if len(line) > 80]
    assert "..." not in said.partition("\n")[2]
    assert [] == [
        line for line in said.splitlines() if re.fullmatch(r" +--[\w-]+( [A-Z=]+)?", line)
    ]


def test_version(capsys):
    """`--version` prints the version of the package."""
    assert 0 == main(["--version"])
    assert f"{version('sagemaker-dist')}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["image", "build", "--framework", "jax"], "'jax' is not one of 'torch', 'tensorflow'"),
        (["pln"], "No such command 'pln'"),
        (["plan"], "Missing argument 'FILE'"),
        (["plan", "--jsn", "x"], "No such option"),
    ],
)
def test_what_is_not_understood(capsys, arguments, said):
    """Wrong usage exits with 2 and prints the reason to standard error."""
    status = main(arguments)
    captured = capsys.readouterr()

    assert 2 == status
    assert said in captured.err
    assert "" == captured.out


def test_faults_of_a_request(capsys):
    """All faults of a request are printed together to standard error, and nothing starts."""
    status = main(["image", "build", "--offline", "--framework-version", "2"])
    said = capsys.readouterr().err

    assert 2 == status
    assert said.startswith("sagemaker-dist: 2 faults in this request:\n  1. framework_version is")


def test_no_engine(capsys, monkeypatch):
    """Without a Docker engine the command prints one message and exits with 1."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    status = main(["image", "inspect"])
    said = capsys.readouterr().err

    assert 1 == status
    assert said.startswith("sagemaker-dist: no Docker engine answers")
    assert "Traceback" not in said


def test_no_profile(capsys):
    """An AWS profile that does not exist is reported as an error without a traceback."""
    status = main(["image", "push", "--profile", "nobody"])

    assert 1 == status
    assert "(nobody)" in capsys.readouterr().err


def test_starts_without_aws_and_docker():
    """`--help` loads neither boto3 nor docker-py."""
    code = (
        "import sys, sagemaker_dist.cli\n"
        "sagemaker_dist.cli.main(['image', '--help'])\n"
        "print([name for name in ('boto3', 'docker', 'sagemaker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.endswith("\n[]\n")


def test_starts_fast():
    """`--help` takes less than half a second of a processor, in the best of three runs."""
    command = [sys.executable, "-m", "sagemaker_dist.cli", "--help"]
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))  # of ended children

    assert 0.5 > min(times)


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")]
)
def test_completion(capsys, shell, mark):
    """Each shell gets a completion script that calls the command itself."""
    status = main(["completion", shell])
    said = capsys.readouterr().out

    assert 0 == status
    assert mark in said
    assert "_SAGEMAKER_DIST_COMPLETE" in said


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sagemaker-dist pl", "plan"),
        ("sagemaker-dist plan --js", "--json"),
        ("sagemaker-dist plan job.toml --set instance_c", "instance_count="),
        ("sagemaker-dist instances show ml.p4d", "ml.p4d.24xlarge"),
        ("sagemaker-dist logs my", "my-job"),
    ],
)
def test_completed_words(tmp_path, words, offered):
    """Completion knows commands, options, keys of a job file, instance types, and local jobs."""
    (tmp_path / "home" / ".sagemaker-dist" / "jobs" / "my-job").mkdir(parents=True)
    code = "import sys; from sagemaker_dist.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": "/usr/bin",
            "HOME": str(tmp_path / "home"),
            "_SAGEMAKER_DIST_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
    )

    assert f"plain,{offered}" in done.stdout.splitlines(), done.stderr


def test_a_notebook_gets_colours(monkeypatch):
    """Output in a notebook is 100 columns wide and has colours."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stdout", stream)
    screen.heading("Warnings")

    assert "\x1b[1mWarnings\x1b[0m\n" == stream.getvalue()
    assert screen.NOTEBOOK_WIDTH == screen.console().width


def test_commands_are_in_the_documents():
    """docs/command.md names every command."""
    page = (Path(__file__).parents[3] / "docs" / "command.md").read_text()

    assert [] == [
        name for name in root.list_commands(click.Context(root)) if f"`{name}" not in page
    ]
