# SPDX-License-Identifier: Apache-2.0
"""Commands that fail under --json print the error's fields to standard output."""

from __future__ import annotations

import json

import pytest

from sagemaker_dist.cli import main

_HEAD = 'entry_point = "train.py"\nrole = "training"\ninstance_count = 2\n'


@pytest.fixture
def job_file(tmp_path):
    """Write a job file and return its path."""
    (tmp_path / "train.py").touch()

    def write(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return str(path)

    return write


def error_of(capsys):
    """Return the error that standard output has as JSON."""
    return json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("more", "about", "kind"),
    [
        ("instance_type = 'ml.c5.nothing'", "instance_type", "unknown"),
        (
            "instance_type = 'ml.c5.xlarge'\n[distribution.smdist.dataparallel]\nlanes = 99",
            "distribution.smdist.dataparallel.lanes",
            "option",
        ),
        (
            "instance_type = 'ml.c5.xlarge'\n[inputs.a]\nuri = 's4://b/p'",
            "inputs.a.uri",
            "unsupported",
        ),
        ("instance_type = 'ml.c5.xlarge'\n[tags]\n'aws:x' = '1'", 'tags."aws:x"', "reserved"),
        (
            "instance_type = 'ml.c5.xlarge'\nsubnets = ['s']\nsecurity_group_ids = ['sg-1']",
            "subnets[0]",
            "option",
        ),
    ],
)
def test_an_error_has_its_fields(capsys, job_file, more, about, kind):
    """One fault has the fields kind, about, what, why and hint."""
    assert 2 == main(["plan", job_file(_HEAD + more), "--json"])

    error = error_of(capsys)

    assert {"kind", "about", "what", "why", "hint"} == set(error)
    assert (kind, about) == (error["kind"], error["about"])


def test_several_errors_are_a_list(capsys, job_file):
    """All faults of a request are in one list, in the order of the file."""
    text = _HEAD + "instance_type = 'ml.c5.nothing'\nmax_run = 0\n"

    assert 2 == main(["plan", job_file(text), "--json"])

    error = error_of(capsys)

    assert "options" == error["kind"]
    assert ["instance_type", "max_run"] == [each["about"] for each in error["faults"]]


def test_without_json_stdout_is_empty(capsys, job_file):
    """Without --json the error is text on standard error."""
    assert 2 == main(["plan", job_file(_HEAD + "instance_type = 'ml.c5.nothing'")])

    said = capsys.readouterr()

    assert "" == said.out
    assert "instance_type is 'ml.c5.nothing'" in said.err
