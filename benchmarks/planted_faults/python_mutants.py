# SPDX-License-Identifier: Apache-2.0
"""Mutants of a Python file, made by operators over its syntax tree.

The operators skip docstrings, annotations, `__all__`, blocks for type checkers, tables of data,
and the texts of errors and log lines: no test of behaviour could detect a change of them.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from benchmarks.planted_faults.faults import Mutant

_FLIPPED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_FLIPPED |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//", "|": "&", "&": "|"}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SYMBOLS: dict[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",  # codespell:ignore notin
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.And: "and",
    ast.Or: "or",
}
_TEXT_KEYWORDS = {"what", "why", "mend", "hint", "help", "note", "stacklevel"}
# Keywords without effect in correct code: zip's strict, a default encoding.
_IDLE_KEYWORDS = {"strict", "encoding"}
_TEXT_CALLS = re.compile(
    r"(^|\.)(_?log(ger|ging)?|_?LOG(GER)?|warnings?|console)\.|(^|\.)(print|echo|warn|secho|cast|"
    r"TypeVar|NewType|[A-Z]\w*(Error|Errors|Fault|Warning|Exception))$"
)
_MOST_LINES = 8


def python_mutants(path: str, source: str) -> list[Mutant]:
    """Return the mutants of a file in the order of its lines."""
    visitor = _Visitor(path, source)
    visitor.visit(ast.parse(source))
    return sorted(visitor.found, key=lambda each: (each.line, each.operator, each.after))


def is_valid(mutant: Mutant, source: str) -> bool:
    """Return whether the mutant compiles and differs from the original program."""
    changed = mutant.planted_in(source)
    try:
        compile(changed, mutant.path, "exec")
    except SyntaxError:
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


class _Visitor(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.lines = [line.encode() for line in source.splitlines()]
        self.scope: list[str] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.found: list[Mutant] = []

    # Positions are (line from 1, column in bytes).

    def text(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        if start[0] == end[0]:
            return self.lines[start[0] - 1][start[1] : end[1]].decode()
        parts = [self.lines[start[0] - 1][start[1] :], *self.lines[start[0] : end[0] - 1]]
        return b"\n".join([*parts, self.lines[end[0] - 1][: end[1]]]).decode()

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        return self.text(_start(node), _end(node))

    def change(
        self,
        operator: str,
        start: tuple[int, int],
        end: tuple[int, int],
        new: str,
        shown: str = "",
    ) -> None:
        if end[0] - start[0] >= _MOST_LINES:
            return
        head = self.lines[start[0] - 1][: start[1]].decode()
        tail = self.lines[end[0] - 1][end[1] :].decode()
        before = b"\n".join(self.lines[start[0] - 1 : end[0]]).decode()
        self.found.append(
            Mutant(
                path=self.path,
                line=start[0],
                operator=operator,
                function=".".join(self.scope) or "<module>",
                change=shown or f"{' '.join(self.text(start, end).split())} -> {new}",
                before=before,
                after=head + new + tail,
            )
        )

    def replace(self, operator: str, node: ast.expr | ast.stmt, new: str, shown: str = "") -> None:
        self.change(operator, _start(node), _end(node), new, shown)

    def replace_between(
        self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> None:
        start, end = _end(left), _start(right)
        text = self.text(start, end)
        if text.count(old.split()[0]) == 1 and "#" not in text:
            changed = re.sub(r"\s+".join(map(re.escape, old.split())), new, text, count=1)
            self.change(operator, start, end, changed, f"{old} -> {new}")

    # Scopes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("overload" in ast.unparse(each) for each in node.decorator_list):
            return
        self.scope.append(node.name)
        self.functions.append(node)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()
        self.scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  ast's own name

    # Statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring, or "..."
        if self.functions and not self._is_text(node.value):
            self.replace("statement deleted", node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if names & {"__all__", "__slots__"} or (not self.functions and _num_lines(node) > 1):
            return
        if self.functions and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self.replace("statement deleted", node, "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and (self.functions or _num_lines(node) == 1):
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace("statement deleted", node, "pass")
        symbol = _SYMBOLS.get(type(node.op))
        if symbol in {"+", "-"}:
            start, end = _end(node.target), _start(node.value)
            new = self.text(start, end).replace(symbol, _ARITHMETIC[symbol])
            self.change("arithmetic", start, end, new, f"{symbol}= -> {_ARITHMETIC[symbol]}=")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace("exception not raised", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions, which check the code itself."""

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is None:
            return
        returns = self.functions[-1].returns if self.functions else None
        is_bool = isinstance(returns, ast.Name) and returns.id == "bool"
        if isinstance(value, ast.Constant) and value.value in (None, True, False):
            pass
        elif is_bool:
            self.replace("return replaced", value, f"not ({self.source_of(value)})")
        else:
            self.replace("return replaced", value, "None")
        self.visit(value)

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if "TYPE_CHECKING" in test or "__name__" in test:
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.replace("break and continue", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace("break and continue", node, "break")

    # Expressions

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.visit(node.iter)
        for test in node.ifs:
            self.visit(test)

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            new = self.source_of(test.operand)
        else:
            new = f"not ({self.source_of(test)})"
        self.replace("condition negated", test, new)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for (left, right), op in zip(pairwise(operands), node.ops, strict=True):
            symbol = _SYMBOLS[type(op)]
            self.replace_between("comparison flipped", left, right, symbol, _FLIPPED[symbol])
            if symbol in _BOUNDARY:
                self.replace_between("boundary", left, right, symbol, _BOUNDARY[symbol])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old = _SYMBOLS[type(node.op)]
        if len(node.values) == 2:
            new = "or" if old == "and" else "and"
            self.replace_between("and, or", node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        symbol = _SYMBOLS.get(type(node.op))
        if not (_is_string(node.left) or _is_string(node.right)):
            if symbol in _ARITHMETIC:
                new = _ARITHMETIC[symbol]
                self.replace_between("arithmetic", node.left, node.right, symbol, new)
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace("constant changed", node, str(not value))
        elif isinstance(value, int):
            self.replace("constant changed", node, str(value + 1))
        elif isinstance(value, float):
            self.replace("constant changed", node, repr(value * 2 if value else 1.0))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings, which are texts."""

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_text(node):
            return
        name = ast.unparse(node.func)
        if name in _SWAPPED_CALLS:
            self.replace("min and max", node.func, _SWAPPED_CALLS[name])
        if name == "isinstance":
            self.visit(node.args[0])
            return
        left_out = _TEXT_KEYWORDS | _IDLE_KEYWORDS | ({"name"} if "Thread" in name else set())
        keywords = [each for each in node.keywords if each.arg not in left_out]
        if not any(isinstance(each, ast.Starred) for each in node.args):
            self._change_arguments(node, [each for each in keywords if each.arg])
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in keywords:
            self.visit(keyword.value)

    def _change_arguments(self, node: ast.Call, keywords: list[ast.keyword]) -> None:
        if len(node.args) >= 2:
            first, second = node.args[:2]
            texts = self.source_of(first), self.source_of(second)
            between = self.text(_end(first), _start(second))
            if texts[0] != texts[1] and not (_is_string(first) or _is_string(second)):
                new = texts[1] + between + texts[0]
                self.change("arguments swapped", _start(first), _end(second), new)
        parts: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        for keyword in keywords:
            at = parts.index(keyword)
            shown = f"{keyword.arg}= dropped"
            if at:
                start = _end(parts[at - 1])
                self.change("argument dropped", start, _end(keyword), "", shown)
            elif len(parts) == 1:
                self.change("argument dropped", _start(keyword), _end(keyword), "", shown)

    def _is_text(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and bool(_TEXT_CALLS.search(ast.unparse(node.func)))


def _start(node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _num_lines(node: ast.stmt) -> int:
    return _end(node)[0] - node.lineno + 1


def _is_string(node: ast.expr) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr)
