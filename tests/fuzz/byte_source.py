# SPDX-License-Identifier: Apache-2.0
"""Values that are made from the bytes of one input of a fuzz target.

After the end of the input all numbers are zero, so that every input is valid.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Sequence
from functools import partial
from itertools import islice
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
_dumps = json.JSONEncoder(check_circular=False).encode  # no value here contains itself


class ValidDocuments:
    """JSON documents that a reader takes, and the words in them that it may look for.

    words: documents that have the words, if other ones than these.
    """

    def __init__(self, *documents: Any, words: Sequence[Any] = ()) -> None:
        self.texts = tuple(json.dumps(each) for each in documents)
        self.words = sorted(words_of(*(words or documents)))[:256]
        self._stored = tuple(marshal.dumps(json.loads(each)) for each in self.texts)

    def copy(self, number: int) -> Any:
        """Return a copy of a document, which may be changed; JSON would take twice as long."""
        return marshal.loads(self._stored[number])


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
    """Reads numbers and JSON values from the front of `data`.

    Attributes:
        byte: Function that returns the next byte, or 0 after the end. It is no method, since an
            input consists of hundreds of bytes, and a call of a method takes thrice as long.
    """

    __slots__ = ("_left", "byte")

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)
        self.byte = partial(next, self._left, 0)

    def below(self, limit: int) -> int:
        """Return a number below `limit`, which is at most 256."""
        return self.byte() % limit

    def flag(self) -> bool:
        return self.byte() % 2 == 1

    def text(self, limit: int) -> str:
        return self.bytes(limit).decode("utf-8", "replace")

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.byte() % len(choices)]

    def bytes(self, limit: int) -> bytes:
        return bytes(islice(self._left, limit))

    def rest(self) -> bytes:
        return bytes(self._left)

    def value(self, words: Sequence[str], depth: int = 0) -> Any:
        """Return a JSON value whose keys and texts are mostly among `words`."""
        byte = self.byte
        kind = byte() % (8 if depth < DEEPEST else 6)
        if kind < 2:
            return words[byte() % len(words)]
        if kind < 4:
            return _SCALARS[byte() % len(_SCALARS)]
        if kind == 4:
            return int.from_bytes(self.bytes(2), "little", signed=True)
        if kind == 5:
            return self.text(byte() % 16)
        if kind == 6:
            return [self.value(words, depth + 1) for _ in range(byte() % 4)]
        return {self._key(words): self.value(words, depth + 1) for _ in range(byte() % 6)}

    def _key(self, words: Sequence[str]) -> str:
        is_known = self.byte() % 16 != 15
        return words[self.byte() % len(words)] if is_known else self.text(4)

    def changed(self, document: Any, words: Sequence[str]) -> Any:
        """Replace, add or remove a few values of a JSON document, and return it."""
        for _ in range(self.byte() % 4):
            self._change(document, words)
        return document

    def _change(self, document: Any, words: Sequence[str]) -> None:
        place, byte = document, self.byte
        while isinstance(place, dict | list) and place:
            is_object = isinstance(place, dict)
            keys = [*place][:256] if is_object else range(min(len(place), 256))
            key = keys[byte() % len(keys)]
            action, inner = byte() % 8, place[key]
            if action < 4 and isinstance(inner, dict | list) and inner:
                place = inner
                continue
            if action == 7:
                del place[key]
            elif action == 6 and is_object:
                place[self._key(words)] = self.value(words)
            else:
                place[key] = self.value(words, depth=3)
            return

    def json_value(self, valid: ValidDocuments) -> Any:
        """Return a JSON value: a changed document, or another value."""
        if self.byte() % 14 < 10:
            return self.changed(valid.copy(self.byte() % len(valid.texts)), valid.words)
        return self.value(valid.words)

    def json_text(self, valid: ValidDocuments) -> str:
        """Return a text: a changed document, another JSON value, a deep one, or no JSON at all."""
        kind = self.byte() % 16
        if kind < 10:
            return self._changed_text(valid)
        if kind < 14:
            return _dumps(self.value(valid.words))
        if kind == 14:
            depth = self.byte() * 40
            opening, closing = self.pick((("[", "]"), ('{"a":', "}")))
            return f"{opening * depth}1{closing * depth}"
        return self.rest().decode("utf-8", "surrogateescape")

    def _changed_text(self, valid: ValidDocuments) -> str:
        number, changes = self.byte() % len(valid.texts), self.byte() % 4
        if not changes:
            return valid.texts[number]
        document = valid.copy(number)
        for _ in range(changes):
            self._change(document, valid.words)
        return _dumps(document)
