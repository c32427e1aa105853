# SPDX-License-Identifier: Apache-2.0
"""Tables of text with aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

_GAP: Final = "  "
_CUT: Final = ".."
_SHORTEST: Final = 8  # smallest width to which a name is cut


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str], width: int
) -> Iterator[str]:
    """Yield the lines of a table: columns in `left` are aligned left, all others right.

    If a line would be wider than `width`, names in `left` lose their beginnings, because names of
    nearby modules differ at the end.
    """
    texts = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in [head, *texts]) for at in range(len(head))]
    names = [at for at, name in enumerate(head) if name in left]
    room = width - sum(widths) - len(_GAP) * len(head) + sum(widths[at] for at in names)
    for at in names:
        most = max(_SHORTEST, room // len(names))
        for row in texts:
            row[at] = row[at] if len(row[at]) <= most else _CUT + row[at][len(_CUT) - most :]
        widths[at] = min(widths[at], most)
    for row in [list(head), *texts]:
        cells = [
            text.ljust(size) if at in names else text.rjust(size)
            for at, (text, size) in enumerate(zip(row, widths, strict=True))
        ]
        yield (_GAP + _GAP.join(cells)).rstrip()
