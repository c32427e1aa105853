# SPDX-License-Identifier: Apache-2.0
"""What Gloo passes of PyTorch's own suite, smdist passes."""

import ast
import importlib.util
import json
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


def lists():
    suite = load_suite()
    return suite.names_in("passes_with_gloo.txt"), suite.names_in("gloo_alone.txt")


@pytest.mark.timeout(LIMIT_SECONDS + 10)
def test_what_gloo_passes_smdist_passes():
    """Every test of the list, none of which may skip itself."""
    command = [sys.executable, SUITE, "smdist"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    results = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    wrong = [result for result in results if result["outcome"] != "pass"]
    said = "\n".join(f"{each['name']}: {each['outcome']}\n{each['said']}" for each in wrong)
    passes, alone = lists()

    assert not wrong, said
    assert 0 == run.returncode, run.stderr[-4000:]
    assert sorted(set(passes) - set(alone)) == sorted(result["name"] for result in results)


def test_the_lists_name_tests_of_the_suite_once():
    """A name that torch has renamed would otherwise be run by nobody."""
    (folder,) = suite_path
    source = ast.parse((Path(folder) / "distributed_test.py").read_text())
    known = {node.name for node in ast.walk(source) if isinstance(node, ast.FunctionDef)}
    passes, alone = lists()

    assert 90 == len(passes)
    assert set(passes) <= known
    assert set(alone) <= set(passes)
    assert not [name for name, times in Counter(passes).items() if times > 1]


def test_every_exception_has_its_reason():
    for line in (HERE / "gloo_alone.txt").read_text().splitlines():
        assert line.startswith("#") or len(line.split()) > 5
