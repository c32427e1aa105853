# SPDX-License-Identifier: Apache-2.0
"""Mutants of a C++ file, made by rules over the tokens of function bodies.

The rules rely on the format (clang-format puts spaces around operators and none inside template
brackets). A mutant may fail to compile: `drawing.works` finds out. The rules skip comments,
strings, the preprocessor, and the expressions of statements that contain a string or throw; from
`if (bad) throw ...;` in one statement only the throw is deleted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.planted_faults.faults import Mutant

_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|[ \t\n]+|^[ \t]*\#(?:\\\n|[^\n])*)
      |(?P<string>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      |(?P<number>\d[\w.']*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<symbol><=>|<<=|>>=|->|\+\+|--|&&|\|\||[<>=!+\-*/%&|^]=|<<|>>|::|\.\.\.|.)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_FLIPPED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "+=": "-=", "-=": "+="}
_STEPS = {"++": "--", "--": "++"}
_WORDS = {"true": "false", "false": "true", "break": "continue", "continue": "break"}
_KEYWORDS = {
    *("if", "for", "while", "switch", "return", "case", "default", "else", "do", "using", "throw"),
    *("delete", "new", "try", "catch", "const", "auto", "static", "break", "continue", "goto"),
    *("static_assert", "typedef", "constexpr", "public", "private", "sizeof", "co_await"),
}
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def cpp_mutants(path: str, source: str) -> list[Mutant]:
    """Return the mutants of a file in the order of its lines."""
    file = _File(path, source)
    for function, tokens in _statements(_tokens(source)):
        file.function = function
        file.mutate(tokens)
    return sorted(file.found, key=lambda each: (each.line, each.operator, each.after))


def _tokens(source: str) -> list[_Token]:
    found = (_Token(m.lastgroup or "", m.group(), m.start()) for m in _TOKEN.finditer(source))
    return [
        _Token("string" if token.kind == "mark" else token.kind, token.text, token.start)
        for token in found
        if token.kind != "skip"
    ]


def _statements(tokens: list[_Token]) -> Iterator[tuple[str, list[_Token]]]:
    """Yield (enclosing function, tokens up to a semicolon or brace) inside function bodies."""
    scopes: list[tuple[str, str]] = []
    run: list[_Token] = []
    for token in tokens:
        run.append(token)
        if token.text not in {";", "{", "}"}:
            continue
        inside = next((name for kind, name in reversed(scopes) if kind == "function"), None)
        if inside is not None:
            yield inside, run
        if token.text == "{":
            scopes.append(("block", "") if inside is not None else _opened_by(run[:-1]))
        elif token.text == "}" and scopes:
            scopes.pop()
        run = []


def _opened_by(header: list[_Token]) -> tuple[str, str]:
    texts = [token.text for token in header]
    first = texts.index("(") if "(" in texts else len(texts)
    if {"namespace", "class", "struct", "enum", "union", "="} & set(texts[:first]):
        return "other", ""
    if first == len(texts) or first == 0:
        return "other", ""
    qualified = [texts[first - 1]]
    at = first - 1
    while at >= 2 and texts[at - 1] == "::":
        qualified.insert(0, texts[at - 2])
        at -= 2
    return "function", "::".join(qualified)


class _File:
    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.starts = [0, *(m.end() for m in re.finditer("\n", source))]
        self.function = ""
        self.found: list[Mutant] = []

    def change(self, operator: str, start: int, end: int, new: str) -> None:
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end) - 1
        if last - first >= _MOST_LINES:
            return
        begin = self.starts[first]
        stop = self.source.find("\n", end)
        old = " ".join(self.source[start:end].split())
        self.found.append(
            Mutant(
                path=self.path,
                line=first + 1,
                operator=operator,
                function=self.function,
                change=f"{old} -> {' '.join(new.split())}",
                before=self.source[begin:stop],
                after=self.source[begin:start] + new + self.source[end:stop],
            )
        )

    def mutate(self, run: list[_Token]) -> None:
        texts = [token.text for token in run]
        self._delete(run)
        self._throw(run)
        if "throw" in texts or any(token.kind == "string" for token in run):
            return
        self._return(run)
        self._negate(run)
        self._swap_arguments(run)
        for at, token in enumerate(run):
            self._change_token(run, at, token)

    def _change_token(self, run: list[_Token], at: int, token: _Token) -> None:
        text = token.text
        is_spaced = (
            self.source[token.start - 1 : token.start] == " "
            and self.source[token.end : token.end + 1] in {" ", "\n"}
            and at > 0
            and (run[at - 1].kind in {"name", "number"} or run[at - 1].text in {")", "]"})
        )
        if is_spaced and text in _FLIPPED:
            self.change("comparison flipped", token.start, token.end, _FLIPPED[text])
        if is_spaced and text in _BOUNDARY:
            self.change("boundary", token.start, token.end, _BOUNDARY[text])
        if is_spaced and text in _ARITHMETIC:
            self.change("arithmetic", token.start, token.end, _ARITHMETIC[text])
        if is_spaced and text in {"&&", "||"}:
            self.change("and, or", token.start, token.end, "||" if text == "&&" else "&&")
        if text in _STEPS:
            self.change("arithmetic", token.start, token.end, _STEPS[text])
        if text == "!" and at and run[at - 1].text in {"(", "&&", "||", "return", "="}:
            self.change("condition negated", token.start, token.end, "")
        if token.kind == "number" and text.isdigit():
            self.change("constant changed", token.start, token.end, str(int(text) + 1))
        if text in _WORDS:
            operator = "constant changed" if text in {"true", "false"} else "break and continue"
            self.change(operator, token.start, token.end, _WORDS[text])
        if text in {"min", "max"} and at and run[at - 1].text == "::":
            new = "max" if text == "min" else "min"
            self.change("min and max", token.start, token.end, new)

    def _delete(self, run: list[_Token]) -> None:
        """Add a mutant that deletes a statement: a call, an assignment or a step."""
        if run[-1].text != ";" or run[0].text in _KEYWORDS:
            return
        if any(token.text == "reserve" for token in run):
            return  # only affects speed
        if run[0].kind != "name" and run[0].text not in {"++", "--", "*"}:
            return
        depth, before = 0, ""
        for at, token in enumerate(run):
            if depth == 0 and token.kind == "name" and before == "name":
                return  # a declaration
            if depth == 0 and token.text in {"<", "&", "{"}:
                return
            if depth == 0 and (token.text in {"=", "+=", "-=", "|=", "&="} or at == len(run) - 1):
                break
            depth += (token.text in "([") - (token.text in ")]")
            before = token.kind
        is_call = before == "symbol" and run[at - 1].text == ")"
        if run[at].text != ";" or is_call or run[0].text in _STEPS:
            self.change("statement deleted", run[0].start, run[-1].end, ";")

    def _throw(self, run: list[_Token]) -> None:
        for token in run:
            if token.text == "throw" and run[-1].text == ";":
                self.change("exception not raised", token.start, run[-1].end, "{}")

    def _return(self, run: list[_Token]) -> None:
        for at, token in enumerate(run):
            if token.text != "return" or run[-1].text != ";":
                continue
            value = run[at + 1 : -1]
            shown = "".join(each.text for each in value)
            if shown not in {"", "true", "false", "nullptr", "{}", "std::nullopt", "0"}:
                self.change("return replaced", value[0].start, value[-1].end, "{}")

    def _negate(self, run: list[_Token]) -> None:
        for at, token in enumerate(run[:-1]):
            if token.text != "if" or run[at + 1].text != "(":
                continue
            last = _closing(run, at + 1)
            if last is not None and run[at + 2].text != "!":
                start, end = run[at + 1].end, run[last].start
                self.change("condition negated", start, end, f"!({self.source[start:end]})")

    def _swap_arguments(self, run: list[_Token]) -> None:
        for at, token in enumerate(run[:-1]):
            if token.kind != "name" or token.text in _KEYWORDS | {"min", "max", "swap"}:
                continue
            last = _closing(run, at + 1) if run[at + 1].text == "(" else None
            if last is None:
                continue
            arguments = _arguments(run[at + 2 : last])
            if len(arguments) < 2 or not (arguments[0] and arguments[1]):
                continue
            spans = [(each[0].start, each[-1].end) for each in arguments[:2]]
            first, second = (self.source[start:end] for start, end in spans)
            if first != second:
                between = self.source[spans[0][1] : spans[1][0]]
                start, end = spans[0][0], spans[1][1]
                self.change("arguments swapped", start, end, second + between + first)


def _closing(run: list[_Token], opening: int) -> int | None:
    depth = 0
    for at in range(opening, len(run)):
        depth += (run[at].text == "(") - (run[at].text == ")")
        if depth == 0:
            return at
    return None


def _arguments(tokens: list[_Token]) -> list[list[_Token]]:
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}")
        if depth == 0 and token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
