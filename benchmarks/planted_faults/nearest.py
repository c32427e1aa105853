# SPDX-License-Identifier: Apache-2.0
"""Tests nearest to a source file: those in the mirrored folder, and those that import the file."""

from __future__ import annotations

import ast
from functools import cache
from itertools import combinations
from pathlib import Path, PurePosixPath

# not part of `make test`, or no tests
_LEFT_OUT = {"docker", "torch_suite", "native", "support", "source"}
_SLOW = {"test_run_matrix.py"}  # part of `make pipeline-sample`
_CORE = ("tests/model", "tests/runtime/dataparallel")
_TENSORFLOW = ("tests/runtime/tensorflow",)


def nearest_tests(root: Path, path: str) -> list[str]:
    """Return test files, nearest first: of the same name, importing the file, in its folder."""
    parts = PurePosixPath(path).parts
    if path.endswith((".cc", ".h")):
        folders = _TENSORFLOW if "tensorflow" in parts else _CORE
        return [name for folder in folders for name in _tests_in(root, root / folder, deep=True)]
    is_runtime = parts[0] == "container"
    inner = parts[2:-1] if is_runtime else parts[1:-1]
    stem = PurePosixPath(path).stem
    folder, is_exact = _mirror(root, is_runtime, inner)
    beside = [] if folder is None else _tests_in(root, folder, deep=is_exact)
    named = [name for name in beside if PurePosixPath(name).stem == f"test_{stem}"]
    package = ".".join([parts[1] if is_runtime else parts[0], *inner])
    modules = {package if stem == "__init__" else f"{package}.{stem}"}
    importing = [
        name
        for name in _tests_in(root, root / "tests", deep=True)
        if modules & _imported(root / name)
    ]
    return list(dict.fromkeys([*named, *importing, *beside]))


def _tests_in(root: Path, folder: Path, *, deep: bool) -> list[str]:
    found = sorted(folder.rglob("test_*.py") if deep else folder.glob("test_*.py"))
    names = [path.relative_to(root) for path in found]
    return [
        name.as_posix()
        for name in names
        if not _LEFT_OUT & set(name.parts) and name.name not in _SLOW
    ]


def _mirror(root: Path, is_runtime: bool, inner: tuple[str, ...]) -> tuple[Path | None, bool]:
    """Return the folder that shares most names with the package, and whether it ends like it."""
    bases = ["tests/runtime"] if is_runtime else ["tests/sdk", "tests"]
    for count in range(len(inner), 0, -1):
        # The last parts come first: dataparallel/tensorflow is tested in tests/runtime/tensorflow.
        for chosen in reversed(list(combinations(inner, count))):
            for base in bases:
                folder = root.joinpath(base, *chosen)
                if folder.is_dir() and _tests_in(root, folder, deep=True):
                    return folder, chosen[-1] == inner[-1]
    return None, False


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)
