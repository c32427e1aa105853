# SPDX-License-Identifier: Apache-2.0
"""Nothing in the product reads meaning out of the sentence of an error or a note: fields say it.

Found are comparisons, searches and cuts of `.what`, `.why`, `.hint` of an error, of `str(error)`,
of `error.args[0]`, and of each element of `.notes` or its `.text`, also through one variable.
Texts of other people's programs, whose exceptions have nothing else, are listed with the reason.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sagemaker_dist", "container/smdist")
PARTS = {"what", "why", "hint"}
READS = {
    *("startswith", "endswith", "partition", "rpartition", "find", "index", "count"),
    *("removeprefix", "removesuffix", "search", "match", "fullmatch", "findall", "finditer"),
}
FOREIGN = {  # file: how often, and why there is nothing but a text
    "sagemaker_dist/jobs/job_file/job_file_reader.py": (
        1,
        "tomllib's line is a field from Python 3.14 on",
    ),
    "sagemaker_dist/cli/doctor/command.py": (1, "layout: a command to copy is not wrapped"),
    "sagemaker_dist/packaging/docker_engine.py": (1, "Docker's client raises a text of requests'"),
    "sagemaker_dist/runners/local/containers/docker_network.py": (
        1,
        "Docker's engine has no code for it",
    ),
    "sagemaker_dist/runners/local/code_copy.py": (1, "shutil.Error has its faults in args alone"),
    "container/smdist/launch/user_code.py": (1, "shutil.Error has its faults in args alone"),
    "container/smdist/modelparallel/planner/model_file.py": (1, "torch's errors of meta tensors"),
    "container/smdist/modelparallel/torch/capture/diagnosis.py": (1, "torch's, of meta tensors"),
    "container/smdist/modelparallel/torch/executor/failure_broadcast.py": (
        1,
        "Gloo's closed connections",
    ),
    "container/smdist/modelparallel/torch/measure/memory_estimate.py": (1, "torch's CPU allocator"),
}


class Reader(ast.NodeVisitor):
    """Collects the lines of a module at which the text of an error or of a note is read."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self._errors: set[str] = set()
        self._texts: set[str] = set()
        self._notes: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        for loop in loops:
            if is_notes(loop.iter) and isinstance(loop.target, ast.Name):
                self._notes.add(loop.target.id)
        super().visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._errors.add(node.name)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        kind = "" if node.annotation is None else ast.unparse(node.annotation)
        if "Error" in kind or "Exception" in kind:
            self._errors.add(node.arg)
        if kind == "Note":
            self._notes.add(node.arg)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if self._is_error(node.value):
            self._errors |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if self._is_text(node.value):
            self._texts |= {each.id for each in node.targets if isinstance(each, ast.Name)}

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        kinds = (ast.In, ast.NotIn, ast.Eq, ast.NotEq)
        if any(isinstance(each, kinds) for each in node.ops) and any(map(self._is_text, sides)):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if (
            isinstance(called, ast.Attribute)
            and called.attr in READS
            and any(map(self._is_text, [called.value, *node.args]))
            and not (called.attr == "endswith" and is_punctuation(node.args[0]))
        ):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        value = node.value
        is_args = isinstance(value, ast.Attribute) and value.attr == "args"
        if is_args and self._is_error(value.value):  # type: ignore[attr-defined]
            self.found.append(node.lineno)
        self.generic_visit(node)

    def _is_error(self, node: ast.expr) -> bool:
        """Return whether an expression is an error, or the error that caused one."""
        if isinstance(node, ast.IfExp):
            return self._is_error(node.body) or self._is_error(node.orelse)
        if isinstance(node, ast.Attribute) and node.attr in {"cause", "__cause__"}:
            return self._is_error(node.value)
        return isinstance(node, ast.Name) and node.id in self._errors

    def _is_note(self, node: ast.expr) -> bool:
        """Return whether an expression is a note, or an element of some `.notes`."""
        if isinstance(node, ast.Subscript):
            return is_notes(node.value)
        return isinstance(node, ast.Name) and node.id in self._notes

    def _is_text(self, node: ast.expr) -> bool:
        """Return whether an expression is the text of an error or a note, whole or cut."""
        if self._is_note(node):
            return True
        if isinstance(node, ast.Attribute):
            return node.attr in PARTS or (node.attr == "text" and self._is_note(node.value))
        if isinstance(node, ast.Name):
            return node.id in self._texts
        if isinstance(node, ast.Subscript):
            return self._is_text(node.value)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"}:
            return any(self._is_error(each) or self._is_note(each) for each in node.args)
        return isinstance(node.func, ast.Attribute) and self._is_text(node.func.value)


def is_notes(node: ast.expr) -> bool:
    """Return whether an expression is the `.notes` of an object, for instance of a plan."""
    return isinstance(node, ast.Attribute) and node.attr == "notes"


def is_punctuation(node: ast.expr) -> bool:
    """Return whether the ends compared are punctuation, which a text for people may need once."""
    ends = ast.literal_eval(node)
    return not any(each.isalnum() for each in "".join(ends))


def reads_in(source: str) -> list[int]:
    reader = Reader()
    reader.visit(ast.parse(source))
    return reader.found


def test_sentences_are_not_read():
    """Every read is one of the foreign texts, and every reason is still needed."""
    found = Counter(
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for _ in reads_in(path.read_text(encoding="utf-8"))
    )

    assert {name: count for name, (count, _) in FOREIGN.items()} == dict(found)


@pytest.mark.parametrize(
    "body",
    [
        "return 'gone' in str(error)",
        "return str(error).startswith('rank')",
        "return error.what.startswith('lanes is ')",
        "return error.what.strip().partition(' ')[0]",
        "return any(name in error.why for name in [])",
        "text = str(error)\n    return GONE.search(text)",
        "return re.search('rank', error.hint)",
        "return error.args[0]",
        "return error.what == 'lanes is 3'",
        "cause = error.cause if error else error\n    return 'gone' in str(cause)",
        "return [each for each in plan.notes if not each.startswith('How fast')]",
        "return any('nobody' in note.text for note in plan.notes)",
        "return plan.notes[0].text.partition(':')[0]",
        "return any(str(note).startswith('rank') for note in plan.notes)",
        "for note in plan.notes:\n        if 'rank' in note.text:\n            return note",
    ],
)
def test_a_read_is_found(body):
    """The check itself: each way to read a sentence."""
    assert [1] == [len(reads_in(f"def f(error: OptionError):\n    {body}\n"))]


@pytest.mark.parametrize(
    "body",
    [
        "return f'{error.what}: {error.why}'",
        "return ' '.join(str(error).split())",
        "return str(error).rstrip('.')[:80]",
        "return error.why + ('' if error.why.endswith(('.', '?')) else '.')",
        "return error.kind == 'lost' and 'lanes' in error.about",
        "return [each.text for each in plan.notes if each.kind != 'unknown_speed']",
        "return [f'{note}.' for note in plan.notes]",
    ],
)
def test_words_for_people_may_be_written(body):
    """To show a text or to read a field is fine."""
    assert [] == reads_in(f"def f(error: OptionError):\n    {body}\n")
