# SPDX-License-Identifier: Apache-2.0
"""A plan as it stands, found or edited, simulated once more: for forecasts and for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.errors import PlanError, raise_faults
from smdist.modelparallel.core.partition import assigned
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.check import opened_faults
from smdist.modelparallel.core.plan.text import size
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.evaluate import Evaluator, Trial
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.samples import Samples, View
from smdist.modelparallel.core.planner.split import split
from smdist.modelparallel.core.planner.write import forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One step of a plan, and the model that it was simulated with."""

    view: View
    trial: Trial


def replay(plan: Plan, problem: Problem) -> Replay:
    """Simulate one step of a plan as it is; of the problem count cluster, costs and state.

    Raises:
        PlanError: It is for another number of ranks or another batch, or does not fit the model.
    """
    raise_faults(_faults(plan, problem))
    samples = Samples(problem, frozenset(plan.opened), (plan.num_microbatches,))
    view = samples.exact(plan.num_microbatches)
    plan.check(view.graph)
    found = assigned(
        view.graph,
        view.costs,
        plan.stage_of,
        num_stages=len(plan.stages),
        rank_of=plan.actions.rank_of,
        state=problem.state,
    )
    candidate = Candidate(
        pipeline=plan.pipeline_parallel_degree,
        data=plan.data_parallel_degree,
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        virtual_stages=plan.virtual_stages,
        active_microbatches=plan.active_microbatches,
    )
    trial = Evaluator(problem, samples).simulate(candidate, split(view.graph, found))
    return Replay(view=view, trial=trial)


def renewed(plan: Plan, problem: Problem) -> Plan:
    """The same decisions with a forecast of their own, and the ties that follow from them.

    Raises:
        PlanError: As `replay`; or a rank would hold more than it may.
    """
    done = replay(plan, problem)
    raise_faults(_too_full(done.trial, problem.memory_limit_bytes))
    found = done.trial.pipeline.split.partition
    bare = replace(plan, ties=found.placement.ties, notes=found.notes, rejected=(), forecast=None)
    return replace(bare, forecast=forecast(problem, done.view, done.trial, bare.basis))


def _too_full(trial: Trial, limit: int | None) -> Iterator[OptionError]:
    """All ranks that hold too much, in one fault."""
    held = trial.timeline.peak_bytes
    over = [rank for rank, each in enumerate(held) if limit is not None and each > limit]
    if over:
        assert limit is not None
        told = [f"rank {rank} holds {size(held[rank])}" for rank in over]
        yield PlanError(
            " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told),
            f"{'each' if len(over) > 1 else 'it'} may use {size(limit)} ({limit:,} bytes)",
            "Move units to a rank that holds less, or use more microbatches",
        )


def _faults(plan: Plan, problem: Problem) -> Iterator[OptionError]:
    if plan.world_size != problem.cluster.size:
        yield PlanError(
            f"the plan is for {plan.world_size} ranks",
            f"there are {problem.cluster.size}",
            "Change pipeline_parallel_degree or data_parallel_degree, or plan anew",
        )
    if plan.batch_size != problem.batch_size:
        yield PlanError(
            f"batch_size of the plan is {plan.batch_size}",
            f"the example has {problem.batch_size} samples",
            "Pass an example with as many, or change batch_size",
        )
    yield from opened_faults(plan)
