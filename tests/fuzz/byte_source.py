# SPDX-License-Identifier: Apache-2.0
"""Values that are made from the bytes of one input of a fuzz target.

After the end of the input all numbers are zero, so that every input is valid.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

DEEPEST = 6
_SCALARS = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "0",
    "ü\ud800",
    [],
    {},
)


class ValidDocuments:
    """JSON documents that a reader takes, and the words in them that it may look for.

    words: documents that have the words, if other ones than these.
    """

    def __init__(self, *documents: Any, words: Sequence[Any] = ()) -> None:
        self.texts = tuple(json.dumps(each) for each in documents)
        self.words = sorted(words_of(*(words or documents)))[:256]


def words_of(*documents: Any) -> set[str]:
    """Return the keys and texts in JSON documents."""
    found: set[str] = set()
    for document in documents:
        inner = document.values() if isinstance(document, dict) else document
        found |= {document} if isinstance(document, str) else set()
        if isinstance(document, dict | list | tuple):
            found |= {*words_of(*inner), *(document if isinstance(document, dict) else ())}
    return found


class ByteSource:
    """Reads numbers and JSON values from the front of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """Return a number below `limit`, which is at most 256."""
        return self.byte() % limit

    def flag(self) -> bool:
        return self.below(2) == 1

    def text(self, limit: int) -> str:
        return self.bytes(limit).decode("utf-8", "replace")

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def bytes(self, limit: int) -> bytes:
        taken = self._data[self._at : self._at + limit]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        return self.bytes(len(self._data))

    def value(self, words: Sequence[str], depth: int = 0) -> Any:
        """Return a JSON value whose keys and texts are mostly among `words`."""
        kind = self.below(8 if depth < DEEPEST else 6)
        if kind < 2:
            return self.pick(words)
        if kind < 4:
            return self.pick(_SCALARS)
        if kind == 4:
            return int.from_bytes(self.bytes(2), "little", signed=True)
        if kind == 5:
            return self.bytes(self.below(16)).decode("utf-8", "replace")
        if kind == 6:
            return [self.value(words, depth + 1) for _ in range(self.below(4))]
        return {self._key(words): self.value(words, depth + 1) for _ in range(self.below(6))}

    def _key(self, words: Sequence[str]) -> str:
        is_known = self.below(16) != 15
        word: str = self.pick(words) if is_known else self.bytes(4).decode("utf-8", "replace")
        return word

    def changed(self, document: Any, words: Sequence[str]) -> Any:
        """Replace, add or remove a few values of a JSON document, and return it."""
        for _ in range(self.below(4)):
            place = document
            while isinstance(place, dict | list) and place:
                keys = list(place) if isinstance(place, dict) else range(len(place))
                key = self.pick(keys[:256])
                action = self.below(8)
                if action < 4 and isinstance(place[key], dict | list) and place[key]:
                    place = place[key]
                    continue
                if action == 7:
                    del place[key]
                elif action == 6 and isinstance(place, dict):
                    place[self._key(words)] = self.value(words)
                else:
                    place[key] = self.value(words, depth=3)
                break
        return document

    def json_value(self, valid: ValidDocuments) -> Any:
        """Return a JSON value: a changed document, or another value."""
        return self._json_value(valid, is_changed=self.below(14) < 10)

    def _json_value(self, valid: ValidDocuments, *, is_changed: bool) -> Any:
        if is_changed:
            return self.changed(json.loads(self.pick(valid.texts)), valid.words)
        return self.value(valid.words)

    def json_text(self, valid: ValidDocuments) -> str:
        """Return a text: a changed document, another JSON value, a deep one, or no JSON at all."""
        kind = self.below(16)
        if kind < 14:
            return json.dumps(self._json_value(valid, is_changed=kind < 10))
        if kind == 14:
            depth = self.byte() * 40
            opening, closing = self.pick((("[", "]"), ('{"a":', "}")))
            return f"{opening * depth}1{closing * depth}"
        return self.rest().decode("utf-8", "surrogateescape")
