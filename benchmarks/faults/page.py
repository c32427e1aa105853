# SPDX-License-Identifier: Apache-2.0
"""Table of faults in docs/reliability.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.faults.actions import VICTIM
from benchmarks.faults.fault_row import Row, Seen
from benchmarks.faults.results import Results
from benchmarks.faults.rows import ROWS
from benchmarks.harness.report import machine

PAGE_NAME = "docs/reliability.md"
BEGIN, END = "<!-- begin: written by make faults -->", "<!-- end: faults -->"
_COLUMNS = (
    "fault", "framework", "named within", "error on every rank", "what is lost", "left behind",
)  # fmt: skip


def line(row: Row, framework: str, seen: Seen) -> str:
    """Return the row of the table for one result."""
    cells = (
        row.name,
        {"tensorflow": "TensorFlow"}.get(framework, framework),
        _seconds(row, seen),
        _errors(row, seen),
        row.expected.lost + _again(seen),
        _left(seen),
    )
    return f"| {' | '.join(cells)} |"


def _seconds(row: Row, seen: Seen) -> str:
    if row.expected.within is None:
        return "-"
    shown = "never" if seen.seconds is None else f"{seen.seconds:.2f} s"
    return f"**{shown}: not as it should be**" if seen.complaints else shown


def _errors(row: Row, seen: Seen) -> str:
    """Return each kind and culprit, with the number of ranks where ranks differ."""
    if row.expected.ends_ranks and not row.expected.by_launchers:
        return "ranks are ended; a line in the log"
    if not seen.errors:
        if seen.complaints and row.expected.within is None:
            return "**not as it should be**"
        if row.expected.by_launchers:
            return _reason(seen)
        return "none; a line in the log" if row.says or row.again else "none"
    found = Counter((kind, culprit) for rank, kind, culprit, *_ in seen.errors if rank != VICTIM)
    found = found or Counter((kind, culprit) for _, kind, culprit, *_ in seen.errors)
    shown = [f"`{kind}`, {_culprit(culprit)}" for (kind, culprit), _ in found.most_common()]
    return "; ".join(shown)


def _culprit(culprit: int | None) -> str:
    return "no rank" if culprit in (None, -1) else f"rank {culprit}"


def _reason(seen: Seen) -> str:
    causes = [each for each in seen.reasons if not each.get("is_secondary")] or seen.reasons
    found = {(str(each.get("kind")), each.get("culprit")) for each in causes}
    named = "; ".join(sorted(f"`{kind}`, {_culprit(culprit)}" for kind, culprit in found))
    return f"launchers: {named}" if named else "launchers, as a text without fields"


def _again(seen: Seen) -> str:
    return "" if seen.again_seconds is None else f"; all sum again after {seen.again_seconds:.1f} s"


def _left(seen: Seen) -> str:
    return ", ".join(seen.left) or ("nothing after the next start" if seen.abandoned else "nothing")


def table(results: Results) -> Iterator[str]:
    """Yield the lines of the table; rows without a result are left out."""
    low, high = results.loads()
    yield (
        f"{machine()}, load average {low:.0f} to {high:.0f}. The victim is rank 2 of 4, on the"
        " third of 4 hosts."
    )
    yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for row in ROWS:
        for framework in row.frameworks:
            seen = results.get(row, framework)
            if seen is not None:
                yield line(row, framework, seen)


def write_page(results: Results) -> None:
    """Write the table between its marks."""
    from benchmarks.faults.results import FOLDER

    page = FOLDER.parents[1] / PAGE_NAME
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n" + "\n".join(table(results)) + f"\n\n{END}{after}")
