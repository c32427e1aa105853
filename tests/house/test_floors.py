# SPDX-License-Identifier: Apache-2.0
"""The floors of the house hold: imports, includes, the environment, the face."""

import ast
import json
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sagemaker_dist

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def named(path: Path) -> str:
    """A file as an error names it."""
    return str(path.relative_to(ROOT))


def test_there_is_something_to_look_at():
    """Both trees of Python, and the core, stand where these tests look for them."""
    assert {"sagemaker_dist", "container"} == {named(path).partition("/")[0] for path in PYTHON}
    assert {".h", ".cc"} == {path.suffix for path in CORE}


def test_imports_only_go_down():
    """import-linter keeps every contract."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True)

    assert re.search(r"Contracts: \d+ kept, 0 broken\.", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("distribution", ["container/smdist", "sagemaker_dist"])
def test_every_package_has_exhaustive_layers(distribution):
    """Each package of two modules or more names the layer of each of them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    covered = {
        package
        for contract in contracts["contracts"]
        if contract["type"] == "layers" and contract.get("exhaustive")
        for package in contract["containers"]
    }
    folder = ROOT / distribution
    packages = {
        ".".join(path.relative_to(folder.parent).parts)
        for path in (folder, *folder.rglob("*"))
        if path.is_dir() and len(_children(path)) > 1
    }

    assert set() == packages - covered


def _children(folder: Path) -> list[Path]:
    """Modules and packages in a folder."""
    inner = [path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    return [*inner, *(path for path in folder.glob("*.py") if path.name != "__init__.py")]


@pytest.mark.parametrize("distribution", ["container/smdist", "sagemaker_dist"])
def test_no_circle_of_imports(distribution):
    """No module reaches itself by imports, those in functions and for type checkers included."""
    folder = ROOT / distribution
    modules = {_module(path, folder): path for path in folder.rglob("*.py")}
    imports = {name: _imports(path, modules) - {name} for name, path in modules.items()}

    assert [] == _circle(imports)


def _circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules of one circle, in order; none where there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _module(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the distribution that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_binary = alias.name == "_C"  # a compiled module beside the file
                found.add(inner if inner in modules or is_binary else node.module)
    return found & modules.keys()


def test_core_knows_no_framework():
    """The C++ core includes neither torch, nor TensorFlow, nor Python."""
    assert [] == [named(path) for path in CORE if FRAMEWORKS.search(path.read_text())]


def test_core_never_reads_the_environment():
    """The core gets a struct; smdist.config reads the environment."""
    assert [] == [named(path) for path in CORE if re.search(r"\bgetenv\b", path.read_text())]


def test_runtime_reads_the_environment_in_one_file():
    """`os.environ` and `os.getenv` stand in one file of smdist/config and nowhere else."""
    readers = [
        named(path) for path in PYTHON if "smdist" in path.parts and _touches_environment(path)
    ]

    assert ["container/smdist/config/environment_variables.py"] == readers


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
    """Of a processor, in a fresh interpreter; noise can only make it more."""
    code = (
        "import time; start = time.process_time(); import sagemaker_dist;"
        " print(time.process_time() - start)"
    )

    def seconds() -> float:
        command = [sys.executable, "-c", code]
        return float(subprocess.run(command, check=True, capture_output=True).stdout)

    assert any(seconds() < 0.1 for _ in range(20))


def test_face_is_complete():
    """Every public name resolves, once; ruff sees to the order of the list."""
    names = sagemaker_dist.__all__

    assert len(set(names)) == len(names)
    assert all(getattr(sagemaker_dist, name) is not None for name in names)


SOURCES = [*PYTHON, *CORE, *sorted((ROOT / "tests").rglob("*.py"))]


def test_files_fit_the_budget():
    """At most 500 lines each, one SPDX line at the top; most have 100 to 300."""
    lines = {named(path): path.read_text().splitlines() for path in SOURCES}

    assert {} == {name: len(each) for name, each in lines.items() if len(each) > 500}
    assert [] == [
        name
        for name, each in lines.items()
        if each and "SPDX-License-Identifier: Apache-2.0" not in each[0]
    ]


def test_functions_fit_on_a_screen():
    """No function over 40 lines after its docstring, no more than five positional parameters.

    A constructor that stands in for one of SageMaker's or SMDDP's takes what that one takes, and
    so does a function of Horovod's.
    """
    functions = [
        (path, node)
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [
        f"{named(path)}: {function.name}"
        for path, function in functions
        if (function.end_lineno or 0) - _first_line(function) + 1 > 40
    ]
    wide = [
        f"{named(path)}: {function.name}"
        for path, function in functions
        if len(function.args.posonlyargs + function.args.args) > 6
        and not ({"estimators", "nn", "parallel"} & set(path.parts) and function.name == "__init__")
        and not ("horovod" in path.parts and not function.name.startswith("_"))
    ]

    assert [] == long
    assert [] == wide


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (
        function.body[0].lineno
        if ast.get_docstring(function) is None
        else function.body[0].end_lineno or 0
    )


def test_both_distributions_have_one_version():
    """SDK, runtime and its requirement on the SDK move together."""
    versions = set()
    for name in ("pyproject.toml", "container/pyproject.toml"):
        text = (ROOT / name).read_text()
        versions |= set(re.findall(r'^version = "(.*)"', text, re.MULTILINE))
        versions |= set(re.findall(r'"sagemaker-dist==(.*)"', text))

    assert 1 == len(versions)
