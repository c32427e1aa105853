# SPDX-License-Identifier: Apache-2.0
"""Table of the verdicts, with the number of caught faults in each part."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.planted_faults.faults import PARTS, Fault, FaultList
from benchmarks.planted_faults.judging import verdicts_in

EQUIVALENT = Path(__file__).with_name("equivalent.json")


def table(faults: FaultList, results: Path) -> str:
    """Return Markdown: one row per fault, then the counts."""
    rows = verdicts_in(results)
    reasons = json.loads(EQUIVALENT.read_text())
    lines = [
        f"Faults of {faults.commit[:8]}, seed {faults.seed}.",
        "",
        "| fault | where | operator | change | found by | verdict | test |",
        "|---|---|---|---|---|---|---|",
    ]
    counts: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    for fault in faults.faults:
        row = rows.get(fault.id, {"verdict": "not judged", "test": ""})
        verdict, test = str(row["verdict"]), str(row["test"])
        if verdict != "not judged" and "caught by" not in verdict and fault.id in reasons:
            verdict, test = "equivalent", reasons[fault.id]
        counts[fault.part][verdict] += 1
        mutant = fault.mutant
        cells = [
            fault.id,
            f"{mutant.path}:{mutant.line}",
            mutant.operator,
            f"`{_short(mutant.change)}`",
            fault.origin + (f", was `{_short(fault.original)}`" if _is_other(fault) else ""),
            verdict,
            test,
        ]
        lines.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
    lines.append("")
    for part, counter in counts.items():
        shown = ", ".join(f"{verdict} {count}" for verdict, count in sorted(counter.items()))
        lines.append(f"- {part}: {shown}")
    return "\n".join(lines)


def _is_other(fault: Fault) -> bool:
    return fault.origin in {"changed line", "replaced"}


def _short(text: str) -> str:
    return text if len(text) <= 70 else text[:67] + "..."
