# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of a model in stages, as in `with model.traced() as trace:`."""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.executor.run_trace import Recorder, Run, gather
from smdist.modelparallel.torch.parallel.model_state import PartitionedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded steps of this rank; `gather` collects the steps of all ranks.

    Attributes:
        recorder: Recorder of this rank's events.
        split: Model whose steps are recorded.
    """

    recorder: Recorder
    split: PartitionedModel

    @classmethod
    def of(cls, split: PartitionedModel) -> Trace:
        """Return a new Trace for this rank, which contains no steps yet.

        Args:
            split: Model whose steps will be recorded.
        """
        groups = split.groups
        recorder = Recorder(rank=groups.rank, replica=groups.rdp_rank, pipeline_rank=groups.pp_rank)
        return cls(recorder=recorder, split=split)

    def gather(self) -> Run:
        """Collect the recorded steps of all ranks; all ranks must call this.

        Returns:
            Steps of all ranks, the same on every rank: `save(path)` writes them as a Chrome trace,
            `plot(path)` as a picture, and `replay()` compares them with a simulation.
        """
        return gather(
            self.recorder,
            session.current().world,
            schedule=self.split.plan.actions,
            edges=self.split.placement.edges,
        )
