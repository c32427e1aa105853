# SPDX-License-Identifier: Apache-2.0
"""Text of a comparison: a table of the parts, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from smdist.modelparallel.core.comparison.comparison_parts import Comparison, Part
from smdist.modelparallel.core.plan import number_format as text
from smdist.modelparallel.core.plan.text_table import table

_WIDTH: Final = 100


def comparison_text(comparison: Comparison, *, title: str) -> str:
    """Return a comparison as text.

    Args:
        comparison: Plan and run, compared.
        title: First words of the text, such as "plan.json beside trace.json".
    """
    return "\n".join(_lines(comparison, title)) + "\n"


def _lines(comparison: Comparison, title: str) -> Iterator[str]:
    steps = text.number(comparison.num_steps, "step")
    yield f"{title}: {steps} of {text.number(comparison.num_replicas, 'pipeline')}"
    rows = [
        [each.name, _number(each, each.predicted), _number(each, each.measured), _ratio(each)]
        for each in comparison.parts
    ]
    yield from table(["part", "predicted", "measured", "ratio"], rows, left=("part",), width=_WIDTH)
    for reason in dict.fromkeys(each.missing for each in comparison.parts if each.missing):
        names = [each.name for each in comparison.parts if each.missing == reason]
        yield f"Not measured: {', '.join(names)}; {reason}."
    yield from (each.text for each in comparison.advice)


def _number(part: Part, number: float | None) -> str:
    if number is None:
        return "-"
    return text.size(number) if part.unit == "bytes" else text.seconds(number)


def _ratio(part: Part) -> str:
    return "-" if part.ratio is None else f"{part.ratio:.2f}"
