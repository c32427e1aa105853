# SPDX-License-Identifier: Apache-2.0
"""Tests state the fields of an error; its sentence is compared in few places, whose number may
only shrink: one golden text for each family of messages, and texts of other people's errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from ratchet import at_most

ROOT = Path(__file__).parents[2]
PARTS = {"what", "why", "hint"}
CAUGHT = ("caught", "error", "raised", ".value")


def sentences(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare a text of two words or more with the text of an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("raises", "warns")):
            yield from (node.lineno for each in node.keywords if each.arg == "match")
        elif isinstance(node, ast.Compare) and num_words(node) >= 2 and reads_error(node):
            yield node.lineno


def num_words(node: ast.AST) -> int:
    constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    texts = " ".join(each for each in constants if isinstance(each, str))
    return sum(any(map(str.isalpha, word)) for word in texts.split())


def reads_error(node: ast.AST) -> bool:
    return any(
        (isinstance(each, ast.Attribute) and each.attr in PARTS)
        or (
            isinstance(each, ast.Call)
            and ast.unparse(each.func) == "str"
            and ast.unparse(each).removesuffix(")").endswith(CAUGHT)
        )
        for each in ast.walk(node)
    )


def test_few_tests_read_sentences():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
        for line in sentences(ast.parse(path.read_text(encoding="utf-8")))
    ]

    at_most("sentences", "in_tests", found)


@pytest.mark.parametrize(
    "line",
    [
        "pytest.raises(ValueError, match='x')",
        "assert 'lanes is 3' == caught.value.what",
        "assert 'is not' in str(caught.value)",
        "assert str(error) == 'lanes is 3: it has to be 1. Pass 1.'",
    ],
)
def test_a_sentence_is_found(line):
    assert [1] == [*sentences(ast.parse(line))]


@pytest.mark.parametrize(
    "line",
    [
        "assert ('lanes', 'option') == (error.about, error.kind)",
        "assert 'lanes' in str(error)",
        "assert 'two words' in shown",
    ],
)
def test_a_field_or_a_word_is_no_sentence(line):
    assert [] == [*sentences(ast.parse(line))]
