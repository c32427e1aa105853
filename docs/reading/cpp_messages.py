# SPDX-License-Identifier: Apache-2.0
"""Finds the texts of errors and log lines in C++ source, as a person would read them.

A text is often an expression, such as `"rank " + std::to_string(rank) + " has left"`. It is shown
as "rank {rank} has left": `{}` holds the place of a value, and "(a / b)" shows two alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LITERAL = r'"(?:\\.|[^"\\\n])*"'
STATEMENT = re.compile(rf"(?:{LITERAL}|'(?:\\.|[^'\\])'|//[^\n]*|[^;{{}}\"'])+|[;{{}}]")
LEXEME = re.compile(rf"{LITERAL}|'(?:\\.|[^'\\])'|<<|::|\s+|.", re.DOTALL)
NO_MESSAGE = re.compile(
    r"#include|py::arg\(|\.def|module\.attr|TF_OpDefinition|snprintf|kEntry|^\s*text\s*<<|\(!holds\)"
)
OP_ATTRIBUTE = re.compile(r"^\w+: (\{'|[\w* ]+( >= \d+)?( = .*)?$)")  # "T: type", "N: int >= 1"
TEXT_FUNCTION = re.compile(
    r"std::string (\w+)\([^{;]*\) (?:const )?\{\s*return ((?:" + LITERAL + r"|[^;\"])+);\s*\}"
)
TEXT_CONSTANT = re.compile(
    r"(?:const char\* (?:const )?|const std::string )(\w+) =\s+((?:" + LITERAL + r'|[^;"])+);'
)
THROWER = re.compile(
    r"(\w+)\(bool holds, const (?:std::string&|char\*) (\w+)\) (?:const )?\{\s*"
    r"if \(!holds\) throw \w+\(((?:" + LITERAL + r'|[^;"])+)\);'
)
CALLS_OF_MESSAGES = re.compile(
    r"\b(\w*Error|require|log|log_rejection|fail|lose|value_error|abort|set|fprintf|TORCH_CHECK\w*)\("
)
# A text without a subject is appended to the name of a peer.
PREDICATE = re.compile(
    r"^\(?(aborted|announced|closed|could|has|passed|posted|refused|released|reported|sent|wrote)\b"
)


def messages(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, message) for each statement with the text of an error or a log line."""
    parts = {name: value for name, value in _definitions(text) if _num_literal_words(value) >= 2}
    throwers = {name: (what, value) for name, what, value in THROWER.findall(text)}
    line = 1
    for statement in STATEMENT.findall(text):
        first = line + len(statement[: statement.find('"')].splitlines()) - 1
        line += statement.count("\n")
        code = re.sub(r"^\s*(#|//)[^\n]*|(?<=[ ;,)])//[^\n\"]*$", "", statement, flags=re.MULTILINE)
        if NO_MESSAGE.search(code) or _is_part(code, text, parts):
            continue
        if any(OP_ATTRIBUTE.match(each[1:-1]) for each in re.findall(LITERAL, code)):
            continue
        for message in _texts(code, parts, throwers):
            if num_words(message) >= 3 and _num_literal_words(code) >= 2:
                yield max(1, first), message


def num_words(message: str) -> int:
    """Return the number of words of two letters or more outside of placeholders."""
    while (without := re.sub(r"\{[^{}]*\}", " ", message)) != message:
        message = without
    return len(re.findall(r"\b[A-Za-z]{2,}\b", message))


def _num_literal_words(code: str) -> int:
    """Return the number of words in the longest string literal."""
    return max((num_words(each[1:-1]) for each in re.findall(LITERAL, code)), default=0)


def _definitions(text: str) -> list[tuple[str, str]]:
    """Return (name, expression) of functions and constants that are parts of texts."""
    return [*TEXT_FUNCTION.findall(text), *TEXT_CONSTANT.findall(text)]


def _is_part(code: str, text: str, parts: dict[str, str]) -> bool:
    """Return whether the statement only defines a part that other texts of the file contain."""
    squeezed = "".join(code.split())
    return any(
        squeezed.endswith("".join(value.split())) and len(re.findall(rf"\b{name}\b", text)) > 1
        for name, value in parts.items()
        if "return" in code or f" {name} =" in code
    )


def _texts(code: str, parts: dict[str, str], throwers: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the texts of a statement: one for each argument that is a text."""
    call = CALLS_OF_MESSAGES.search(code)
    name = call.group(1) if call else ""
    operands = _arguments(code[call.end() :] if call else code)
    if "TORCH_CHECK" in name:
        operands = [" + ".join(operands[2 if name.endswith("_WITH") else 1 :])]
    for operand in operands:
        message = _shown(operand, parts)
        if name in throwers and num_words(message) >= 2:
            what, template = throwers[name]
            message = _shown(_arguments(template)[0], parts).replace("{" + what + "}", message)
        yield "{name of the peer} " * bool(PREDICATE.match(message)) + message.strip()


def _arguments(code: str) -> list[str]:
    """Return the top-level arguments of a call, up to its closing parenthesis, or of a list."""
    depth, found = 0, [""]
    for lexeme in LEXEME.findall(code):
        depth += lexeme in "([" if len(lexeme) == 1 else 0
        if lexeme in (")", "]"):
            depth -= 1
            if depth < 0:
                break
        if lexeme == "," and depth == 0:
            found.append("")
        else:
            found[-1] += lexeme
    return found


def _shown(expression: str, parts: dict[str, str], depth: int = 0) -> str:
    """Return an expression as a text with placeholders."""
    expression = re.sub(r'^(.*\breturn\b|[^"]*[^=!<>]=(?!=))', "", expression, flags=re.DOTALL)
    choices = _choices(expression)
    if choices:
        texts = [_shown(each, parts, depth) for each in choices]
        return f"({' / '.join(texts)})" if all(texts) else "".join(texts)
    shown = ""
    for operand in map(str.strip, _split(expression, ("+",))):
        literals = re.findall(LITERAL, operand)
        name = re.match(r"\w+", operand)
        value = parts.get(name.group() if name else "")
        if _choices(operand):
            shown += _shown(operand, parts, depth)
        elif literals:
            shown += "".join(each[1:-1] for each in literals)
        elif value and depth < 2:
            shown += _shown(value, parts, depth + 1)
        elif operand:
            shown += "{" + _placeholder(operand) + "}"
    return shown.replace("\\n", "").replace('\\"', '"').replace("%s", "{}")


def _choices(expression: str) -> list[str]:
    """Return the two alternatives of `a ? "b" : "c"`, or nothing for other expressions."""
    bare = re.sub(r"^\s*\((.*)\)\s*$", r"\1", expression, flags=re.DOTALL)
    choices = _split(bare, ("?", ":"))
    return choices[1:] if len(choices) == 3 and '"' in bare else []


def _split(expression: str, operators: tuple[str, ...]) -> list[str]:
    """Return the operands of an expression between operators outside of parentheses."""
    depth, found = 0, [""]
    for lexeme in LEXEME.findall(expression):
        if len(lexeme) == 1:
            depth += (lexeme in "([{") - (lexeme in ")]}")
        if lexeme in operators and depth <= 0:
            found.append("")
        else:
            found[-1] += lexeme
    return found


def _placeholder(operand: str) -> str:
    """Return a short name for a value: without conversions to text, at most 40 characters."""
    short = " ".join(operand.split())
    short = re.sub(r"std::(to_string|string|strerror)|static_cast<\w+>", "", short)
    short = re.sub(r"^\((.*)\)$", r"\1", short).strip()
    return short if len(short) <= 40 else short[:40] + "..."
