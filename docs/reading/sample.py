# SPDX-License-Identifier: Apache-2.0
"""Draw 100 docstrings and 60 messages of a commit, for a reader to grade how clear each is.

    .venv/bin/python docs/reading/sample.py draw COMMIT > docs/reading/NAME.md
    .venv/bin/python docs/reading/sample.py count docs/reading/NAME.md

The commit's hash is the seed of the random choice. A docstring is shown below the signature of its
function, as an editor shows it when the mouse rests on a call. A message is the text of an error or
a log line, in Python or C++: `{value}` is a placeholder, `(a / b)` are two alternatives, `[a]` is
a part that some messages lack, and ` | ` separates arguments.

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

import cpp_messages
from cpp_messages import num_words

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
PARTS = {"what", "why", "hint"}


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
        elif path.startswith(CPP) and path.endswith(".cc"):
            for line, message in cpp_messages.messages(text):
                yield f"{path}:{line}", "", message


def _python_messages(path: str, text: str) -> Iterator[tuple[str, str, str]]:
    tree = ast.parse(text)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    constants = _local_texts(
        ast.Module([each for each in tree.body if isinstance(each, ast.Assign)], [])
    )
    seen: set[int] = set()
    # Inner functions first: a call belongs to the innermost, whose local texts it may use.
    for function in reversed([each for each in ast.walk(tree) if isinstance(each, functions)]):
        local = constants | _local_texts(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and id(node) not in seen:
                seen.add(id(node))
                message = _message(node, local)
                if message:
                    yield f"{path}:{node.lineno}", "", message


def _local_texts(scope: ast.AST) -> dict[str, ast.expr]:
    """Return the values of variables that the function, or module, assigns once, by name."""
    assigned = [
        (target.id, node.value)
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    counts = Counter(name for name, _ in assigned)
    return {name: value for name, value in assigned if counts[name] == 1}


def _message(call: ast.Call, local: dict[str, ast.expr]) -> str:
    """Return the text of an error or a log line; empty if the call has none of its own."""
    name = ast.unparse(call.func)
    if not (ERROR.search(name) or LOG.search(name)):
        return ""
    given = [*call.args, *(each.value for each in call.keywords if each.arg in PARTS)]
    texts = [_text(each, local) for each in given]
    is_error = bool(ERROR.search(name))
    if is_error and len(texts) == 3 and num_words("".join(texts)) >= 3:
        what, why, hint = texts  # of our errors, shown as their str() joins them
        return f"{what}: {why}. {hint}"
    parts = [each for each in texts if num_words(each) >= 2]
    return " | ".join(parts) if num_words(" ".join(parts)) >= 3 else ""


def _text(node: ast.expr, local: dict[str, ast.expr]) -> str:
    """Return a text as a person would read it, with {} around values and (a / b) for a choice."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, local) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, local)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, local) + _text(node.right, local)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left, local)
    if isinstance(node, ast.IfExp):
        choices = [_text(node.body, local), _text(node.orelse, local)]
        return f"({' / '.join(choices)})" if all(choices) else f"[{''.join(choices)}]"
    if isinstance(node, ast.Name) and num_words(_text(local.get(node.id, ast.Constant(0)), {})):
        return _text(local[node.id], {})
    return "{" + ast.unparse(node) + "}"


if __name__ == "__main__":
    main()
