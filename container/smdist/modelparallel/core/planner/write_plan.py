# SPDX-License-Identifier: Apache-2.0
"""Creation of the plan that the planner returns, with its predicted time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smdist.modelparallel.core.note import FEW_MICROBATCHES, UNKNOWN_MEMORY, Note
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan import (
    Fingerprint,
    Forecast,
    Plan,
    RankMemory,
    Rejected,
    StageForecast,
)
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.evaluate import SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem


def write(
    problem: Problem, samples: Samples, trial: SimulatedCandidate, rejected: tuple[Rejected, ...]
) -> Plan:
    """Return the plan of the best candidate, with its forecast, notes and rejected candidates.

    Args:
        problem: Model, cluster, batch and options.
        samples: Graphs and costs of the model.
        trial: Simulation of the best candidate.
        rejected: Candidates that were not chosen, with reasons.
    """
    candidate = trial.candidate
    view = samples.exact(candidate.num_microbatches)
    partition = trial.pipeline.split.partition
    plan = Plan(
        model=view.graph.model,
        pipeline_parallel_degree=candidate.pipeline,
        data_parallel_degree=candidate.data,
        schedule=candidate.schedule,
        batch_size=problem.batch_size,
        num_microbatches=candidate.num_microbatches,
        stages=partition.stages,
        fingerprint=Fingerprint.of(view.graph),
        active_microbatches=candidate.active_microbatches,
        virtual_stages=candidate.virtual_stages,
        opened=tuple(sorted(samples.opened)),
        ties=partition.placement.ties,
        notes=tuple(_notes(problem, trial)),
        rejected=rejected,
    )
    return replace(plan, forecast=forecast(problem, view, trial, plan.basis))


def forecast(problem: Problem, view: View, trial: SimulatedCandidate, basis: str) -> Forecast:
    """Return the forecast of one step of a simulated candidate.

    Args:
        problem: Model, cluster, batch and options.
        view: Graph and costs of one microbatch.
        trial: Simulated candidate.
        basis: Digest of the plan's degrees, schedule and stages (`Plan.basis`), which the forecast
            stores to notice later edits of the plan.
    """
    timeline, costs = trial.timeline, trial.pipeline.costs()
    slowest = max(placed_units(view.graph), key=lambda unit: view.costs.of(unit.name).seconds)
    return Forecast(
        step_seconds=timeline.step_seconds,
        samples_per_second=1 / trial.seconds_per_sample if trial.seconds_per_sample else 0.0,
        bubble_fraction=timeline.bubble_fraction,
        reduce_seconds=timeline.step_seconds - timeline.pipeline_seconds,
        stages=tuple(
            StageForecast(
                forward_seconds=cost.forward_seconds,
                backward_seconds=cost.backward_seconds,
                num_parameters=sum(view.graph.parameter[name].num_elements for name in names),
            )
            for cost, names in zip(costs, trial.pipeline.split.parameters, strict=True)
        ),
        memory=tuple(
            RankMemory(
                state_bytes=peak.static_bytes,
                activation_bytes=peak.saved_bytes,
                receive_bytes=peak.receive_bytes,
                workspace_bytes=peak.workspace_bytes,
            )
            for peak in timeline.peaks
        ),
        memory_limit_bytes=problem.memory_limit_bytes,
        bottleneck=slowest.name,
        source=view.costs.source,
        device=view.costs.device,
        basis=basis,
    )


def _notes(problem: Problem, trial: SimulatedCandidate) -> Iterator[Note]:
    """Yield notes for users: on the bottleneck, a long idle time, or an unknown memory size."""
    yield from trial.pipeline.split.partition.notes
    if trial.candidate.pipeline > 1 and trial.timeline.bubble_fraction > 0.25:
        yield from _more_microbatches(trial)
    if problem.memory_limit_bytes is None:
        yield Note(
            UNKNOWN_MEMORY,
            "The memory of a rank is not known, so no plan was rejected for its memory. "
            "Pass device_memory to limit it",
        )


def _more_microbatches(trial: SimulatedCandidate) -> Iterator[Note]:
    idle = f"Ranks wait {trial.timeline.bubble_fraction:.0%} of the pipeline's time"
    if trial.candidate.num_microbatches < 4 * trial.candidate.pipeline:
        enough = 4 * trial.candidate.pipeline
        text = f"{idle}. To reduce this, use a larger batch with {enough} microbatches or more"
        yield Note(FEW_MICROBATCHES, text)
