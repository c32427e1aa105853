# SPDX-License-Identifier: Apache-2.0
"""Plan of a pipeline: the modules of each stage, the schedule of microbatches, and the reasons.

A training run needs the degrees, the schedule and the stages of a plan. The predicted time and
memory, the notes and the rejected alternatives are for readers. Nothing in a plan depends on a
framework such as PyTorch.
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
    """Plan that divides one model over the ranks of one cluster.

    The fields are documented at `PlanData`.

    Raises:
        OptionError: A number is out of range, the batch cannot be divided into equal microbatches,
            or the plan names a stage that does not exist.
    """

    def __post_init__(self) -> None:
        raise_all([*plan_check.number_faults(self)] or [*plan_check.forecast_faults(self)])

    def check(self, graph: Graph) -> Placement:
        """Check that a model can run with this plan, and return the stages of all its nodes.

        The result also has the parameters that several stages hold (`ties`). They are computed from
        the model, so they are correct even if the plan was edited.

        Raises:
            PlanError: The plan does not match the model. All wrong modules and stages are reported
                at once.
        """
        return plan_check.check(self, graph)

    def explain(self, predicted: str = "") -> str:
        """Return a text for users: degrees, schedule, stages, memory and time, with reasons.

        Args:
            predicted: Sentences about the time of a step in place of those of the forecast, which
                is a simulation. Default: those of the forecast.
        """
        return explain.explain(self, predicted)

    def document(self) -> plan_json.Document:
        """Return the plan as a dict of JSON types, with a format version."""
        return plan_json.write(self)

    @classmethod
    def from_document(cls, found: object, *, where: str = "this plan") -> Plan:
        """Return the plan from a dict that `document` returned, which may have been edited.

        Args:
            found: Dict to read.
            where: Name of the dict in errors.

        Raises:
            PlanError: Keys are missing or unknown, or values have wrong types; all are reported at
                once.
        """
        return plan_json.read(cls, found, where)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file; an existing file is replaced atomically.

        Raises:
            PlanError: The file cannot be written.
        """
        plan_file.write(plan_file.path_of(path), self.document())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return the plan in a JSON file, which may have been edited.

        Call `check` with the model afterwards.

        Raises:
            PlanError: The file cannot be read, is not JSON, or is not a complete plan.
        """
        place = plan_file.path_of(path)
        try:
            return cls.from_document(plan_file.read(place), where=str(path))
        except OptionError as error:
            raise plan_file.named(place, error) from error
