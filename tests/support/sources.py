# SPDX-License-Identifier: Apache-2.0
"""Modules, classes, imports and prose of both distributions; each file is parsed once."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"sagemaker_dist": ROOT / "sagemaker_dist", "smdist": ROOT / "container/smdist"}
CPP_FOLDERS = tuple(ROOT / "container" / name for name in ("src", "include", "bindings"))
NAMELESS = {"__init__", "__main__"}  # a package has one of each
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Module:
    """One file of a distribution."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def distribution(self) -> str:
        """Return "sagemaker_dist" or "smdist"."""
        return self.name.partition(".")[0]

    @property
    def where(self) -> str:
        """Return the path from the root."""
        return self.path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Prose:
    """A docstring, or a comment with the lines that continue it."""

    where: str
    text: str


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of both distributions, sorted by path."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            text = path.read_text()
            found.append(Module(".".join([package, *parts]), path, text, ast.parse(text)))
    return tuple(found)


@cache
def cpp_files() -> tuple[tuple[str, str], ...]:
    """Return (path, text) of each C++ file of the runtime."""
    paths = sorted(path for folder in CPP_FOLDERS for path in folder.rglob("*.[ch]*"))
    return tuple((path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths)


# Names


def shared_module_names() -> dict[str, list[str]]:
    """Return the files of a distribution that share their name, by "distribution: name"."""
    found = defaultdict(list)
    for module in modules():
        if module.path.stem not in NAMELESS:
            found[f"{module.distribution}: {module.path.stem}"].append(module.where)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def shared_class_names() -> dict[str, list[str]]:
    """Return the places of classes that share their name, by "distribution: name"."""
    found = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                place = f"{module.where}:{node.lineno}"
                found[f"{module.distribution}: {node.name}"].append(place)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


# Imports


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, by name.

    Every import statement counts: at the top, in a function, for type checkers. `from a import b`
    is an import of a.b where that is a module, and of a where it is not.
    """
    names = {module.name for module in modules()}
    known = names | set(_compiled())
    return {
        module.name: set(_imported(module, known)) & names - {module.name} for module in modules()
    }


def _compiled() -> Iterator[str]:
    """Yield the names of modules that have a stub here and are compiled."""
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.pyi"):
            yield ".".join([package, *path.relative_to(folder).with_suffix("").parts])


def _imported(module: Module, names: set[str]) -> Iterator[str]:
    package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *filter(None, [node.module])]
            source = ".".join(parts)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in names else source


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return each largest set of modules that reach each other, sorted (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(start: str) -> None:
        path = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    path.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group = sorted(stack[at:])
                    del stack[at:]
                    if len(group) > 1:
                        found.append(group)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


# Prose


@cache
def docstrings() -> tuple[Prose, ...]:
    """Return every docstring of both distributions."""
    found = []
    for module in modules():
        for node in ast.walk(module.tree):
            text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
            if text:
                found.append(Prose(f"{module.where}:{getattr(node, 'lineno', 1)}", text))
    return tuple(found)


@cache
def comments() -> tuple[Prose, ...]:
    """Return every comment in Python and C++; lines of comments that follow each other are one."""
    found = []
    for module in modules():
        found += _joined(module.where, _python_comments(module.text))
    for path, text in cpp_files():
        found += _joined(path, _cpp_comments(text))
    return tuple(found)


def _python_comments(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield (line, whether code stands before it, text)."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            has_code = bool(token.line[: token.start[1]].strip())
            yield token.start[0], has_code, token.string.lstrip("#").strip()


def _cpp_comments(text: str) -> Iterator[tuple[int, bool, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        without = re.sub(r'"(?:\\.|[^"\\])*"', lambda found: "_" * len(found.group()), line)
        at = without.find("//")
        if at >= 0:
            yield number, bool(line[:at].strip()), line[at:].lstrip("/").strip()


def _joined(path: str, lines: Iterable[tuple[int, bool, str]]) -> list[Prose]:
    found: list[Prose] = []
    last = -1
    for number, has_code, text in lines:
        goes_on = number == last + 1 and not has_code and text
        last = number if text else -1
        if goes_on and found:
            found[-1] = Prose(found[-1].where, f"{found[-1].text} {text}")
        elif text and not _is_directive(text):
            found.append(Prose(f"{path}:{number}", text))
    return found


def _is_directive(text: str) -> bool:
    return bool(re.match(r"SPDX|noqa|type:|pragma|clang-format|codespell|NOLINT|fmt:", text))
