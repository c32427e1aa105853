# SPDX-License-Identifier: Apache-2.0
"""What Gloo passes of PyTorch's own suite, smdist passes."""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from torch.testing._internal.distributed import __path__ as suite_path

HERE = Path(__file__).parent
SUITE = HERE / "suite.py"
LIMIT_SECONDS = 170


def load_suite():
    spec = importlib.util.spec_from_file_location("torch_suite", SUITE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def passes_with_gloo(ranks):
    return load_suite().names_in(f"passes_with_gloo_{ranks}.txt")


def gloo_alone():
    return load_suite().names_in("gloo_alone.txt")


def run(*arguments):
    """Results by name, the exit status, and stderr with its stacks, also where time ran out."""
    command = [sys.executable, SUITE, "smdist", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
    results = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {result["name"]: result for result in results}, process.returncode, errors


@pytest.mark.timeout(LIMIT_SECONDS + 10)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_what_gloo_passes_smdist_passes(ranks):
    """Every test of the list, none of which may skip itself."""
    results, status, errors = run("--ranks", str(ranks))
    expected = sorted(set(passes_with_gloo(ranks)) - set(gloo_alone()))
    wrong = [result for result in results.values() if result["outcome"] != "pass"]
    said = "\n".join(f"{each['name']}: {each['outcome']}\n{each['said']}" for each in wrong)

    assert not wrong, f"{said}\n{errors}"
    assert expected == sorted(results), errors
    assert 0 == status, errors


def test_planted_faults_are_reported():
    """A wrong result, a skip, a hang and a dead rank: none of them passes for a pass."""
    results, status, errors = run("--planted", "--deadline-seconds", "10")
    said = {name: (result["outcome"], result["said"]) for name, result in results.items()}
    expected = {
        "test_one_rank_hangs": ("fail", "timed out after"),
        "test_all_ranks_skip": ("skip", "skipped"),
        "test_a_sum_is_wrong": ("fail", "assert 2 == tensor.item()"),
        "test_last_rank_dies_at_work": ("fail", "rank 2"),
        "test_last_rank_dies_at_the_end": ("fail", "the ranks' exit codes are [0, 0, -9]"),
    }
    wrong = [
        (name, said.get(name))
        for name, (outcome, words) in expected.items()
        if name not in said or said[name][0] != outcome or words not in said[name][1]
    ]

    assert not wrong
    assert expected.keys() == results.keys()
    assert 1 == status
    assert "in test_one_rank_hangs" in errors  # its stacks


def test_the_lists_name_tests_of_the_suite_once():
    """A name that torch has renamed would otherwise be run by nobody."""
    (folder,) = suite_path
    source = ast.parse((Path(folder) / "distributed_test.py").read_text())
    known = {node.name for node in ast.walk(source) if isinstance(node, ast.FunctionDef)}
    passes = [name for ranks in (3, 4, 8) for name in passes_with_gloo(ranks)]

    assert [91, 3, 21] == [len(passes_with_gloo(ranks)) for ranks in (3, 4, 8)]
    assert set(passes) <= known
    assert set(gloo_alone()) <= set(passes)
    assert not [name for name, times in Counter(passes).items() if times > 1]


def test_every_exception_has_its_reason():
    for line in (HERE / "gloo_alone.txt").read_text().splitlines():
        assert line.startswith("#") or len(line.split()) > 5


def test_tests_for_gpus_are_those_that_gloo_may_run():
    names = load_suite().names_for_gpus()

    assert {"test_all_reduce_sum_cuda", "test_barrier_cuda", "test_ddp_uneven_inputs"} <= set(names)
    assert not {"test_reduce_sum_cuda", "test_send_recv_nccl", "test_all_gather"} & set(names)


def test_passes_of_another_backend(tmp_path):
    """Lines that are no results are passed over; a backend that passes nothing is no measure."""
    lines = tmp_path / "lines"
    outcomes = [{"name": name, "outcome": name} for name in ("pass", "skip", "fail")]
    lines.write_text("\n".join(["a warning", *map(json.dumps, outcomes)]))
    passed = load_suite().names_passed(lines)
    lines.write_text(json.dumps(outcomes[1]))
    with pytest.raises(SystemExit) as raised:
        load_suite().names_passed(lines)

    assert ["pass"] == passed
    assert str(lines) in raised.value.code
