# SPDX-License-Identifier: Apache-2.0
"""Plan of a pipeline: the units of each stage, the schedule of microbatches, and the reasons.

A plan decides everything that a run needs before the run starts; the forecast, the notes and the
rejected plans are for readers. Nothing in a plan depends on a framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import explain, plan_check, plan_file, plan_json
from smdist.modelparallel.core.plan.plan_data import PlanData


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Plan(PlanData):
    """Plan that splits one model over the ranks of one cluster.

    Its fields are those of `PlanData`.

    Raises:
        OptionError: A number is invalid for every plan, the batch cannot be cut into equal
            microbatches, or the forecast or the ties belong to other stages.
    """

    def __post_init__(self) -> None:
        raise_all([*plan_check.number_faults(self)] or [*plan_check.forecast_faults(self)])

    def check(self, graph: Graph) -> Placement:
        """Check that a model can run as planned, and return the stages of its nodes.

        The returned ties are those of the current plan, even if it was edited.

        Raises:
            PlanError: The plan does not fit the model; all faults at once, by names of units and
                numbers of stages.
        """
        return plan_check.check(self, graph)

    def explain(self) -> str:
        """Return a text that says what was decided, and why."""
        return explain.explain(self)

    def document(self) -> plan_json.Document:
        """Return the plan as JSON types, with a version."""
        return plan_json.write(self)

    @classmethod
    def from_document(cls, found: object, *, where: str = "this plan") -> Plan:
        """Read a plan that `document` wrote, edited or not.

        Raises:
            PlanError: Keys are missing, unknown or of another type; all faults at once.
        """
        return plan_json.read(cls, found, where)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file atomically: the whole plan or nothing.

        Raises:
            PlanError: The file cannot be written.
        """
        plan_file.write(plan_file.path_of(path), self.document())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a file, which may have been edited; then `check` it with its model.

        Raises:
            PlanError: The file cannot be read, is not JSON, or is not a complete plan.
        """
        place = plan_file.path_of(path)
        try:
            return cls.from_document(plan_file.read(place), where=str(path))
        except OptionError as error:
            raise plan_file.named(place, error) from error
