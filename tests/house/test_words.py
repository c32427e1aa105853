# SPDX-License-Identifier: Apache-2.0
"""Docstrings and comments can be understood alone: how they begin, and idioms that nobody knows.

words.toml lists the words. ratchet.toml has how many offenders are left; they may only shrink.
"""

import re
from collections.abc import Iterable

import pytest
from ratchet import LIMITS, WORDS, at_most
from sources import Prose, comments, cpp_files, docstrings, modules


def begins_badly(text: str, words: Iterable[str]) -> bool:
    """Return whether the first words of a text are among `words`."""
    start = " ".join(re.findall(r"[a-z']+", text.lower().split("\n")[0])[:2])
    return text[:1].isalpha() and any(f"{start} ".startswith(f"{word} ") for word in words)


def offenders(found: Iterable[Prose], key: str) -> list[str]:
    return [
        f"{each.where}: {each.text.splitlines()[0][:90]}"
        for each in found
        if begins_badly(each.text, WORDS[key])
    ]


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("Of those that wait, the first.", True),
        ("The same, for a shard.", True),
        ("The samples of a batch.", False),
        ("Itself a rank.", False),
        ("Return what the feed returned.", False),
        ("`of` is the owner.", False),
    ],
)
def test_first_words_are_found(text, is_bad):
    assert is_bad == begins_badly(text, WORDS["first_words_of_docstrings"])


def test_docstrings_begin_with_a_verb_or_a_noun():
    at_most("first_words", "docstrings", offenders(docstrings(), "first_words_of_docstrings"))


def test_comments_begin_with_no_pronoun():
    at_most("first_words", "comments", offenders(comments(), "first_words_of_comments"))


def test_idioms_are_counted_each():
    """Every idiom of words.toml has its limit, so that none is listed and never looked for."""
    assert set(WORDS["idioms"]) == set(LIMITS["idioms"])


@pytest.mark.parametrize("idiom", WORDS["idioms"])
def test_idioms_go(idiom):
    pattern = re.compile(WORDS["idioms"][idiom], re.IGNORECASE)
    files = [*((module.where, module.text) for module in modules()), *cpp_files()]
    found = [
        f"{where}:{number}: {line.strip()[:90]}"
        for where, text in files
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        for _ in pattern.finditer(line)
    ]

    at_most("idioms", idiom, found)
