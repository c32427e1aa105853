# SPDX-License-Identifier: Apache-2.0
"""Data of a comparison: parts of a step, each predicted and measured, and advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

STEP: Final = "step"
COMPUTE: Final = "compute"
BUBBLE: Final = "bubble"
COMMUNICATION: Final = "exposed communication"
MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of a step, predicted and measured.

    Attributes:
        name: "step", "compute", "bubble", "exposed communication" or "memory".
        unit: "seconds" or "bytes".
        predicted: Number that the plan predicts.
        measured: Number of the recorded run; None if the record does not have it.
        missing: Reason why there is no measured number; "" if there is one.
    """

    name: str
    unit: str
    predicted: float
    measured: float | None
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured number divided by the predicted one; None if one of them is 0 or missing."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Change that would bring plan and run together.

    Attributes:
        part: Name of the part that differs.
        kind: "calibrate", "balance", "microbatches", "links", "reduction", "memory" or "none".
        text: Sentence for users.
    """

    part: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plan and run, compared.

    Attributes:
        parts: Step, compute, bubble, exposed communication and memory, in this order. Compute,
            bubble and exposed communication are means over the ranks of a pipeline, and their sum
            is the step.
        advice: What to change; one entry of kind "none" if the plan holds.
        num_steps: Number of measured steps.
        num_replicas: Number of pipelines that were measured.
    """

    parts: tuple[Part, ...]
    advice: tuple[Advice, ...]
    num_steps: int
    num_replicas: int

    def part(self, name: str) -> Part:
        """Return the part with a name."""
        return next(each for each in self.parts if each.name == name)

    def document(self) -> dict[str, Any]:
        """Return the comparison as a dict of JSON types."""
        return {
            "num_steps": self.num_steps,
            "num_replicas": self.num_replicas,
            "parts": [asdict(each) | {"ratio": each.ratio} for each in self.parts],
            "advice": [asdict(each) for each in self.advice],
        }
