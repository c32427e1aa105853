# SPDX-License-Identifier: Apache-2.0
"""The failure of a job has what the files of late ranks say, from whatever host they are on."""

import json

from sagemaker_dist.runners.local.late_ranks import with_evidence
from sagemaker_dist.runners.local.opt_ml_tree import HostTree

LATE = {"rank": 3, "has_come": False, "last_operation": None}


def trees(tmp_path, files):
    """Return two hosts; the second one has these files of its ranks."""
    folder = tmp_path / "algo-2" / "output" / "data" / "smdist-debug"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return [HostTree(tmp_path / "algo-1"), HostTree(tmp_path / "algo-2")]


def test_stacks_and_the_kernel_state_are_added(tmp_path):
    state = {"letter": "T", "seconds": 10}
    files = {"stacks-rank-3.txt": "train.py", "state-rank-3.json": json.dumps(state)}
    fields = with_evidence({"late_ranks": [LATE], "rank": 0}, trees(tmp_path, files))

    assert {
        "rank": 0,
        "late_ranks": [{**LATE, "stacks": "train.py", "kernel_state": state}],
    } == fields


def test_a_rank_without_files_has_neither(tmp_path):
    fields = with_evidence({"late_ranks": [LATE]}, trees(tmp_path, {"state-rank-3.json": "[1]"}))

    assert [{**LATE, "stacks": None, "kernel_state": None}] == fields["late_ranks"]


def test_long_stacks_are_cut(tmp_path):
    fields = with_evidence(
        {"late_ranks": [LATE]}, trees(tmp_path, {"stacks-rank-3.txt": "x" * 9999})
    )

    assert 4096 == len(fields["late_ranks"][0]["stacks"])


def test_what_a_host_wrote_may_be_anything(tmp_path):
    """The file is the container's own."""
    hosts = trees(tmp_path, {})

    assert {"rank": 1} == with_evidence({"rank": 1}, hosts)
    assert {"late_ranks": "x"} == with_evidence({"late_ranks": "x"}, hosts)
    assert {"late_ranks": [{"rank": "../3"}]} == with_evidence(
        {"late_ranks": ["x", {"rank": "../3"}]}, hosts
    )
