# SPDX-License-Identifier: Apache-2.0
"""The floors of the house hold: imports, includes, the environment, the face."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sagemaker_dist

ROOT = Path(__file__).parents[2]
PYTHON = sorted(
    [*(ROOT / "sagemaker_dist").rglob("*.py"), *(ROOT / "container/smdist").rglob("*.py")]
)
CORE = sorted(
    path
    for folder in ("include", "src")
    for path in (ROOT / "container" / folder).rglob("*")
    if path.suffix in {".h", ".cc"}
)
FRAMEWORKS = re.compile(r'#include\s*[<"](torch|c10|ATen|tensorflow|pybind11|Python\.h)')


def test_imports_only_go_down():
    """import-linter keeps every floor; a new room fails until someone says its floor."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True)

    assert "Contracts: 11 kept, 0 broken." in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_core_knows_no_framework(path):
    """The C++ core includes neither torch, nor TensorFlow, nor Python."""
    assert not FRAMEWORKS.search(path.read_text())


def test_core_never_reads_the_environment():
    """The core gets a struct; config.py reads the environment."""
    assert CORE
    assert [] == [path.name for path in CORE if re.search(r"\bgetenv\b", path.read_text())]


def test_runtime_reads_the_environment_in_one_file():
    """`os.environ` and `os.getenv` stand in smdist/config.py and nowhere else."""
    readers = [
        str(path.relative_to(ROOT))
        for path in PYTHON
        if "smdist" in path.parts and _touches_environment(path)
    ]

    assert ["container/smdist/config.py"] == readers


def _touches_environment(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in {"environ", "environb", "getenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in nodes
    )


def test_import_is_light():
    """Importing the face loads no torch, sagemaker or boto3."""
    code = "import sys, json, sagemaker_dist; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}

    assert set() == loaded & {"torch", "tensorflow", "numpy", "sagemaker", "boto3", "botocore"}


def test_import_takes_under_a_tenth_of_a_second():
    """The best of five fresh interpreters, which noise can only make slower."""
    code = (
        "import time; start = time.perf_counter(); import sagemaker_dist;"
        " print(time.perf_counter() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        for _ in range(5)
    ]

    assert 0.1 > min(float(run.stdout) for run in runs)


def test_face_is_complete():
    """Every public name resolves, once; ruff sees to the order of the list."""
    names = sagemaker_dist.__all__

    assert len(set(names)) == len(names)
    assert all(getattr(sagemaker_dist, name) is not None for name in names)


SOURCES = [*PYTHON, *CORE, *sorted((ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_fits_the_budget(path):
    """At most 400 lines, one SPDX line at the top."""
    lines = path.read_text().splitlines()

    assert 400 >= len(lines)
    assert not lines or "SPDX-License-Identifier: Apache-2.0" in lines[0]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_function_fits_on_a_screen(path):
    """No function over 40 lines, no more than five positional parameters.

    A constructor that stands in for one of SageMaker's or SMDDP's takes what that one takes.
    """
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > 40]
    is_drop_in = bool({"estimators", "parallel"} & set(path.parts))
    wide = [
        f.name
        for f in functions
        if len(f.args.posonlyargs + f.args.args) > 6 and not (is_drop_in and f.name == "__init__")
    ]

    assert [] == long
    assert [] == wide


def test_both_distributions_have_one_version():
    """SDK, runtime and its requirement on the SDK move together."""
    versions = set()
    for name in ("pyproject.toml", "container/pyproject.toml"):
        text = (ROOT / name).read_text()
        versions |= set(re.findall(r'^version = "(.*)"', text, re.MULTILINE))
        versions |= set(re.findall(r'"sagemaker-dist==(.*)"', text))

    assert 1 == len(versions)
