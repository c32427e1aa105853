# SPDX-License-Identifier: Apache-2.0
"""The plan: which units run on which stage, in which order microbatches go through, and why.

Everything that a run needs to know is decided here, before it starts; the forecast, the notes and
what was rejected are for the people who read it. Nothing in it depends on a framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, Tie
from smdist.modelparallel.core.plan import check, document, explain, file
from smdist.modelparallel.core.plan.fingerprint import Fingerprint, digest
from smdist.modelparallel.core.plan.forecast import Forecast, Rejected
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.actions import Schedule


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Plan:
    """A split of one model over the ranks of one cluster.

    Attributes:
        model: Class of the model: for people.
        pipeline_parallel_degree: Ranks of one pipeline, p.
        data_parallel_degree: Pipelines beside each other, each with a batch of its own.
        schedule: Its name.
        batch_size: Samples of one pipeline in one step.
        num_microbatches: How many parts a batch is cut into; divides `batch_size`.
        stages: Names of units, by stage. There are p times `virtual_stages` of them.
        active_microbatches: How many may be under way at once; None where the schedule knows.
        virtual_stages: Stages on each rank.
        opened: Units that were replaced by the modules in them before the model was cut.
        ties: Parameters that several stages hold.
        forecast: What a step is expected to take; None where nobody asked.
        notes: What caps the gain, and what to do: sentences for people.
        rejected: What was not chosen, and why.
        fingerprint: What model this is for.

    Raises:
        OptionError: A number that no plan can have, a batch that cannot be cut into equal
            microbatches, or a forecast or ties of other stages.
    """

    model: str
    pipeline_parallel_degree: int
    data_parallel_degree: int
    schedule: str
    batch_size: int
    num_microbatches: int
    stages: tuple[tuple[str, ...], ...]
    active_microbatches: int | None = None
    virtual_stages: int = 1
    opened: tuple[str, ...] = ()
    ties: tuple[Tie, ...] = ()
    forecast: Forecast | None = None
    notes: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    fingerprint: Fingerprint

    def __post_init__(self) -> None:
        raise_all([*check.number_faults(self)] or [*check.forecast_faults(self)])

    @property
    def world_size(self) -> int:
        """How many ranks it is for."""
        return self.pipeline_parallel_degree * self.data_parallel_degree

    @property
    def microbatch_size(self) -> int:
        """Samples in one microbatch."""
        return self.batch_size // self.num_microbatches

    @cached_property
    def actions(self) -> Schedule:
        """What each rank of a pipeline does, in order.

        Raises:
            OptionError: There is no such schedule, or not with these numbers.
        """
        return make_schedule(
            self.schedule,
            num_ranks=self.pipeline_parallel_degree,
            num_microbatches=self.num_microbatches,
            virtual_stages=self.virtual_stages,
            active_microbatches=self.active_microbatches,
        )

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """The stage of each unit, by name."""
        return {unit: stage for stage, units in enumerate(self.stages) for unit in units}

    def rank(self, pipeline: int, pipeline_rank: int) -> int:
        """Where a rank of a pipeline is among all: those of one pipeline are neighbours."""
        return pipeline * self.pipeline_parallel_degree + pipeline_rank

    def replicas(self, pipeline_rank: int) -> tuple[int, ...]:
        """The ranks that hold the same stages and sum their gradients."""
        return tuple(self.rank(each, pipeline_rank) for each in range(self.data_parallel_degree))

    @property
    def basis(self) -> str:
        """Stands for all decisions and ties: a forecast with another basis is of another plan."""
        decided = (self.schedule, self.active_microbatches, self.virtual_stages, self.opened)
        tied = [(tie.parameter, tie.stages) for tie in self.ties]
        sizes = (self.pipeline_parallel_degree, self.data_parallel_degree, self.batch_size)
        return digest([repr((decided, sizes, self.num_microbatches, self.stages, tied))])

    @property
    def is_stale(self) -> bool:
        """Whether the plan was edited after its forecast and notes were made, or its ties were."""
        return self.forecast is not None and self.forecast.basis != self.basis

    def check(self, graph: Graph) -> Placement:
        """Check that a model can run as planned; the result says where its nodes run.

        The ties in it hold for the plan as it is, edited or not.

        Raises:
            PlanError: All faults at once, by names of units and numbers of stages.
        """
        return check.check(self, graph)

    def explain(self) -> str:
        """Say for people what was decided, and why."""
        return explain.explain(self)

    def document(self) -> document.Document:
        """Spell it as JSON's types, with a version."""
        return document.write(self)

    @classmethod
    def from_document(cls, found: object, *, where: str = "this plan") -> Plan:
        """Read what `document` wrote, edited or not.

        Raises:
            PlanError: All keys that are missing, unknown or of another type.
        """
        return document.read(cls, found, where)

    def save(self, path: str | Path) -> None:
        """Write it to a file, as a whole or not at all.

        Raises:
            PlanError: The file cannot be written.
        """
        file.write(file.path_of(path), self.document())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read it from a file that may have been edited; `check` it with its model next.

        Raises:
            PlanError: The file cannot be read, is not JSON, or lacks something.
        """
        place = file.path_of(path)
        try:
            return cls.from_document(file.read(place), where=str(path))
        except OptionError as error:
            raise file.named(place, error) from error
