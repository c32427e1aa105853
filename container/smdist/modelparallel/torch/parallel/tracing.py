# SPDX-License-Identifier: Apache-2.0
"""What a model's ranks do in some steps, recorded: `with model.traced() as trace:`."""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.executor.trace import Recorder, Run, gather
from smdist.modelparallel.torch.parallel.cut import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Steps of this rank.

    Attributes:
        recorder: What this rank did.
    """

    recorder: Recorder
    split: Split

    @classmethod
    def of(cls, split: Split) -> Trace:
        """An empty one."""
        groups = split.groups
        recorder = Recorder(rank=groups.rank, replica=groups.rdp_rank, pipeline_rank=groups.pp_rank)
        return cls(recorder=recorder, split=split)

    def gather(self) -> Run:
        """What all ranks did; collective over the world, and the same on all.

        `save(path)` of it writes a Chrome trace, `plot(path)` a picture, `replay()` compares it
        with the simulation.
        """
        return gather(
            self.recorder,
            session.current().world,
            schedule=self.split.plan.actions,
            edges=self.split.placement.edges,
        )
