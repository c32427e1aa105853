# SPDX-License-Identifier: Apache-2.0
"""Comparison of the plan with the run, which rank 0 prints once, after 50 training steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.comparison import compare_plan, comparison_text
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.executor import OnEvent
from smdist.modelparallel.torch.executor.run_trace import Recorder, gather
from smdist.modelparallel.torch.session.process_groups import Groups

CHECK_STEP: Final = 50  # training step after which rank 0 prints how plan and run compare
FIRST_RECORDED: Final = 45  # training step from which on steps are recorded; it is not counted


class PlanComparison:
    """Comparison of the plan with the last of the first 50 training steps, which are recorded.

    Pipelines of one rank, and plans without a valid forecast, are not compared.

    Attributes:
        num_steps: Number of training steps that have begun.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._recorder: Recorder | None = None

    def begin(self, plan: Plan, groups: Groups, listeners: list[OnEvent]) -> None:
        """Record steps from now on.

        Args:
            plan: Plan of the run.
            groups: Process groups of the plan.
            listeners: Functions that receive events; a recorder is added.
        """
        if _is_comparable(plan):
            self._recorder = Recorder(
                rank=groups.rank, replica=groups.rdp_rank, pipeline_rank=groups.pp_rank
            )
            listeners.append(self._recorder)

    def end(
        self, plan: Plan, groups: Groups, listeners: list[OnEvent], edges: Sequence[Edge]
    ) -> None:
        """Compare the recorded steps; all ranks must call this after step `CHECK_STEP`.

        Args:
            plan: Plan of the run.
            groups: Process groups of the plan.
            listeners: Functions that receive events; the recorder is removed.
            edges: Values that the stages send to each other.
        """
        if self._recorder is None:
            return
        recorder, self._recorder = self._recorder, None
        listeners.remove(recorder)
        # The ranks of one pipeline are enough; all ranks of a large world would be too many.
        run = gather(recorder, groups.of(Axis.PP), schedule=plan.actions, edges=tuple(edges))
        if groups.rank == 0:
            try:
                found = compare_plan(plan, run.tracks, edges)
            except OptionError:  # no recorded step has all actions of the plan
                return
            title = f"smdist: the plan beside the run, after {CHECK_STEP} steps"
            sys.stderr.write(comparison_text(found, title=title))


def _is_comparable(plan: Plan) -> bool:
    """Return True for a plan of several ranks with a forecast that is still valid."""
    has_forecast = plan.forecast is not None and not plan.is_stale
    return has_forecast and plan.pipeline_parallel_degree > 1
