# SPDX-License-Identifier: Apache-2.0
"""Draws 100 docstrings and 60 messages of a commit, for somebody to grade how clear each is.

    .venv/bin/python docs/reading/sample.py draw COMMIT > docs/reading/NAME.md
    .venv/bin/python docs/reading/sample.py count docs/reading/NAME.md

The commit's hash is the seed, so that nobody chooses what is read. A docstring stands below the
signature of its function, as an editor shows it when the mouse rests on a call. A message is the
text of an error or a log line, in Python or C++; `{}` holds the place of a value.

After each entry stands `Grade:`, to be filled with "clear at once", "after thought" or "not".
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ("sagemaker_dist", "container/smdist")
CPP = ("container/src", "container/include", "container/bindings")
NUM_DOCSTRINGS = 100
NUM_MESSAGES = 60
GRADES = ("clear at once", "after thought", "not")
ERROR = re.compile(r"(Error|Errors|Exit|Warning|Fault|Failure|require|_fault|_error|abort)$")
LOG = re.compile(
    r"(^|\.)_?log(ger|ging)?\.(debug|info|warning|error|exception|critical)$"
    r"|(^|\.)(warn|print|echo|secho|say|show)$",
    re.IGNORECASE,
)
PARTS = {"what", "why", "mend", "hint"}


def main() -> None:
    """Draw a sample, or count the grades of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["draw", "count"])
    parser.add_argument("what", help="a commit to draw from, or a graded file")
    options = parser.parse_args()
    text = drawn(options.what) if options.command == "draw" else counted(Path(options.what))
    sys.stdout.write(text + "\n")


def drawn(commit: str) -> str:
    """Return the sample of a commit as Markdown."""
    seed = _git("rev-parse", commit).decode().strip()
    texts = _files(seed)
    generator = random.Random(seed)  # noqa: S311  a sample, no secret
    docstrings = generator.sample(sorted(_all_docstrings(texts)), NUM_DOCSTRINGS)
    messages = generator.sample(sorted(_all_messages(texts)), NUM_MESSAGES)
    lines = [f"# A sample of {seed}", "", f"Drawn by `docs/reading/sample.py draw {seed[:7]}`.", ""]
    for title, found in (("Docstrings", docstrings), ("Messages", messages)):
        lines += [f"## {title}", ""]
        for number, (where, code, text) in enumerate(found, start=1):
            lines += [f"### {title[0]}{number} · {where}", "", *_fenced(code, text), "Grade:", ""]
    return "\n".join(lines)


def counted(path: Path) -> str:
    """Return how many entries of each kind have each grade."""
    counts: dict[str, Counter[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            counts[line[3:]] = kind = Counter()
        elif line.startswith("Grade:"):
            grade = line.removeprefix("Grade:").partition(" -- ")[0].strip()
            if grade not in GRADES:
                raise SystemExit(f"{path}: {line!r} is none of {', '.join(GRADES)}")
            kind[grade] += 1
    rows = []
    for name, kind in counts.items():
        shown = ", ".join(f"{kind[grade]} {grade}" for grade in GRADES)
        rows.append(f"{name}: {shown} of {kind.total()} ({kind[GRADES[0]] / kind.total():.0%})")
    return "\n".join(rows)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S607


def _files(commit: str) -> dict[str, str]:
    archived = _git("archive", commit, "sagemaker_dist", "container")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content and member.name.endswith((".py", ".cc", ".h")):
                found[member.name] = content.read().decode()
    return found


def _fenced(code: str, text: str) -> list[str]:
    return ["```", *([code] if code else []), text, "```", ""]


# Docstrings: (where, signature, text)


def _all_docstrings(texts: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for path, text in texts.items():
        if not path.startswith(PYTHON) or not path.endswith(".py"):
            continue
        for names, node in _with_scope(ast.parse(text), ()):
            docstring = ast.get_docstring(node)
            if docstring:
                where = f"{path}:{getattr(node, 'lineno', 1)}"
                yield where, _signature(path, names, node), docstring


def _with_scope(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, scopes):
        names = (*names, node.name) if not isinstance(node, ast.Module) else names
        yield names, node
    for child in ast.iter_child_nodes(node):
        yield from _with_scope(child, names)


def _signature(path: str, names: tuple[str, ...], node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {'.'.join(names)}"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {'.'.join(names)}({ast.unparse(node.args)}){returns}"
    module = path.removeprefix("container/").removesuffix(".py").replace("/", ".")
    return f"module {module.removesuffix('.__init__')}"


# Messages: (where, "", text)


def _all_messages(texts: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for path, text in texts.items():
        if path.startswith(PYTHON) and path.endswith(".py"):
            yield from _python_messages(path, text)
        elif path.startswith(CPP):
            yield from _cpp_messages(path, text)


def _python_messages(path: str, text: str) -> Iterator[tuple[str, str, str]]:
    tree = ast.parse(text)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    seen: set[int] = set()
    # Inner functions first: a call belongs to the innermost, which knows its local texts.
    for function in reversed([each for each in ast.walk(tree) if isinstance(each, functions)]):
        local = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and id(node) not in seen:
                seen.add(id(node))
                message = _message(node, local)
                if message:
                    yield f"{path}:{node.lineno}", "", message


def _message(call: ast.Call, local: dict[str, ast.expr]) -> str:
    name = ast.unparse(call.func)
    if not (ERROR.search(name) or LOG.search(name)):
        return ""
    given = [*call.args, *(each.value for each in call.keywords if each.arg in PARTS)]
    parts = [_text(each, local) for each in given]
    parts = [part for part in parts if len(re.findall(r"\b[A-Za-z]{2,}\b", part)) >= 2]
    ends = [": ", ". ", ""] if ERROR.search(name) and len(parts) == 3 else [" | "] * len(parts)
    message = "".join(part + end for part, end in zip(parts, ends, strict=False))
    return message.removesuffix(" | ") if len(re.findall(r"\b[A-Za-z]{2,}\b", message)) >= 3 else ""


def _text(node: ast.expr, local: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Name) and node.id in local:
        return _text(local[node.id], {})
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, local) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, local) + _text(node.right, local)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left, local)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, local)} / {_text(node.orelse, local)}"
    return "{}"


def _cpp_messages(path: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each statement whose string literals hold at least three words."""
    line = 1
    for statement in re.findall(r'(?:"(?:\\.|[^"\\\n])*"|//[^\n]*|[^;{}"])+|[;{}]', text):
        code = re.sub(r"^\s*(#|//)[^\n]*", "", statement, flags=re.MULTILINE)
        pieces = re.split(r'("(?:\\.|[^"\\\n])*")', code)
        message = ""
        for at, piece in enumerate(pieces):
            if at % 2:
                message += piece[1:-1].replace("\\n", " ")
            elif 0 < at < len(pieces) - 1 and piece.strip():
                message += "{}"
        first = line + len(statement[: statement.find('"')].splitlines()) - 1
        line += statement.count("\n")
        if len(re.findall(r"\b[A-Za-z]{2,}\b", message)) >= 3:
            yield f"{path}:{max(1, first)}", "", message


if __name__ == "__main__":
    main()
