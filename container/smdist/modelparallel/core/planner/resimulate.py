# SPDX-License-Identifier: Apache-2.0
"""Simulation of an existing plan, which may have been edited, for its forecast and picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.partition import assigned
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.plan.plan_check import opened_faults
from smdist.modelparallel.core.plan_errors import PlanError, PlanMemoryError, raise_faults
from smdist.modelparallel.core.planner.candidate_pipeline import split
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.evaluate import Evaluator, SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.planner.write_plan import forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Resimulation:
    """Simulated step of an existing plan, with graph and costs of its model."""

    view: View
    trial: SimulatedCandidate


def replay(plan: Plan, problem: Problem) -> Resimulation:
    """Return the simulation of one step of a plan, with the problem's cluster and costs.

    The plan itself is not changed.

    Raises:
        PlanError: The plan is for another number of ranks, another batch or another model.
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
    """Return a copy of the plan with new `forecast`, `ties` and `notes`, and empty `rejected`.

    Raises:
        PlanError: The plan does not match the model, the batch or the number of ranks, or a rank
            would exceed its memory.
    """
    done = replay(plan, problem)
    raise_faults(_out_of_memory(done.trial, problem.memory_limit_bytes))
    found = done.trial.pipeline.split.partition
    bare = replace(plan, ties=found.placement.ties, notes=found.notes, rejected=(), forecast=None)
    return replace(bare, forecast=forecast(problem, done.view, done.trial, bare.basis))


def _out_of_memory(trial: SimulatedCandidate, limit: int | None) -> Iterator[OptionError]:
    """Yield one error that lists all ranks that need more than `limit` bytes.

    Nothing is yielded if all ranks fit, or if the limit is None.
    """
    held = trial.timeline.peak_bytes
    over = [rank for rank, each in enumerate(held) if limit is not None and each > limit]
    if over:
        assert limit is not None
        ranks = [f"rank {rank} holds {size(held[rank])}" for rank in over]
        error = PlanMemoryError(
            " and ".join([", ".join(ranks[:-1]), ranks[-1]] if len(ranks) > 1 else ranks),
            f"{'each' if len(over) > 1 else 'it'} may use {size(limit)} ({limit:,} bytes)",
            "Move modules to a rank that holds less, or use more microbatches",
            about="stages",
        )
        error.least_bytes = max(held)
        yield error


def _faults(plan: Plan, problem: Problem) -> Iterator[OptionError]:
    tensor = plan.tensor_parallel_degree  # the cluster's devices are groups of so many ranks
    if plan.world_size != problem.cluster.size * tensor:
        yield PlanError(
            f"the plan is for {plan.world_size} ranks",
            f"the cluster has {problem.cluster.size * tensor}",
            "Change a parallel degree of the plan, or make a new plan",
            about="pipeline_parallel_degree",
            kind="difference",
        )
    if plan.batch_size != problem.batch_size:
        yield PlanError(
            f"batch_size of the plan is {plan.batch_size}",
            f"the example has {problem.batch_size} samples",
            f"Pass an example with {plan.batch_size} samples, or change batch_size of the plan",
            about="batch_size",
            kind="difference",
        )
    yield from opened_faults(plan)
