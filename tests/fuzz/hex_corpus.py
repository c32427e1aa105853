# SPDX-License-Identifier: Apache-2.0
"""Corpora of fuzz targets: text files with one input per line, in hexadecimal digits.

Lines that begin with # are comments: they say which fault the next input once showed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

MOST_INPUTS = 200
MOST_BYTES = 200_000
REGRESSION = "# regression: "


def read_inputs(corpus: Path) -> list[bytes]:
    lines = corpus.read_text(encoding="utf-8").splitlines() if corpus.exists() else []
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def regressions(corpus: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the inputs that once showed a fault, each with the comment before it."""
    lines = corpus.read_text(encoding="utf-8").splitlines() if corpus.exists() else []
    for comment, line in pairwise(lines):
        if comment.startswith(REGRESSION):
            yield comment, bytes.fromhex(line)


def write_inputs(corpus: Path, inputs: Iterable[bytes]) -> int:
    """Write a corpus: its regressions, then inputs of all lengths; return their number.

    If there are too many inputs, short and long ones are left out alike.
    """
    kept = list(regressions(corpus))
    lines = [text for comment, data in kept for text in (comment, data.hex())]
    found = sorted(set(inputs) - {data for _, data in kept}, key=lambda each: (len(each), each))
    count = min(MOST_INPUTS - len(kept), len(found))
    chosen = [found[number * len(found) // count] for number in range(count)]
    size = sum(map(len, lines)) + len(lines)
    while chosen and size + sum(2 * len(each) + 1 for each in chosen) > MOST_BYTES:
        chosen.pop()
    lines += [each.hex() for each in chosen]
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(kept) + len(chosen)


def unpack(corpus: Path, folder: Path) -> None:
    """Write each input into a file of its own, as libFuzzer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in read_inputs(corpus):
        (folder / sha256(data).hexdigest()[:16]).write_bytes(data)
