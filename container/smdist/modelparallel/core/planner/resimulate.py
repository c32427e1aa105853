# SPDX-License-Identifier: Apache-2.0
"""Simulation of an existing plan, found or edited, for forecasts and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import assigned
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.plan.plan_check import opened_faults
from smdist.modelparallel.core.plan_errors import PlanError, raise_faults
from smdist.modelparallel.core.planner.candidate_pipeline import split
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.evaluate import Evaluator, SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.write_plan import forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Resimulation:
    """Simulated step of a plan, and the model that it was simulated with."""

    view: View
    trial: SimulatedCandidate


def replay(plan: Plan, problem: Problem) -> Resimulation:
    """Simulate one step of a plan as it is, with the problem's cluster, costs and state.

    Raises:
        PlanError: The plan is for another number of ranks or another batch, or does not fit the
            model.
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
    return Resimulation(view=view, trial=trial)


def renewed(plan: Plan, problem: Problem) -> Plan:
    """Return the plan with a new forecast, and with the ties that follow from its decisions.

    Raises:
        PlanError: `replay` fails, or a rank would hold more than it may.
    """
    done = replay(plan, problem)
    raise_faults(_too_full(done.trial, problem.memory_limit_bytes))
    found = done.trial.pipeline.split.partition
    bare = replace(plan, ties=found.placement.ties, notes=found.notes, rejected=(), forecast=None)
    return replace(bare, forecast=forecast(problem, done.view, done.trial, bare.basis))


def _too_full(trial: SimulatedCandidate, limit: int | None) -> Iterator[OptionError]:
    """Return one fault that lists all ranks with too little memory."""
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
