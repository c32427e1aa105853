# SPDX-License-Identifier: Apache-2.0
"""Text tables with aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

_GAP: Final = "  "
_CUT: Final = ".."  # in place of the dropped beginning of a name
_SHORTEST: Final = 8  # a name is never shortened below this number of letters


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str], width: int
) -> Iterator[str]:
    """Yield the lines of a table.

    If a line would be wider than `width`, texts in left-aligned columns lose their beginnings,
    because names of neighbour modules differ at the end.

    Args:
        head: Titles of the columns.
        rows: Texts of each row.
        left: Titles of the columns to align left; all others are aligned right.
        width: Largest number of letters of a line.
    """
    texts = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in [head, *texts]) for at in range(len(head))]
    names = [at for at, name in enumerate(head) if name in left]
    available = width - sum(widths) - len(_GAP) * len(head) + sum(widths[at] for at in names)
    for at in names:
        most = max(_SHORTEST, available // len(names))
        for row in texts:
            row[at] = row[at] if len(row[at]) <= most else _CUT + row[at][len(_CUT) - most :]
        widths[at] = min(widths[at], most)
    for row in [list(head), *texts]:
        cells = [
            text.ljust(size) if at in names else text.rjust(size)
            for at, (text, size) in enumerate(zip(row, widths, strict=True))
        ]
        yield (_GAP + _GAP.join(cells)).rstrip()
