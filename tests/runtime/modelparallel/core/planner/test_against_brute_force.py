# SPDX-License-Identifier: Apache-2.0
"""The planner against every plan that there is: all candidates, cut in all ways."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from plan_problems import MIB, Model, problem
from split_graphs import given, graph, unit

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Costs, Link, NodeCost
from smdist.modelparallel.core.partition import assigned
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan_errors import PlanError, PlanMemoryError
from smdist.modelparallel.core.planner import Problem, find_plan
from smdist.modelparallel.core.planner.candidate_pipeline import split
from smdist.modelparallel.core.planner.candidates import candidates, microbatch_choices
from smdist.modelparallel.core.planner.cost_samples import Samples
from smdist.modelparallel.core.planner.cuts import rank_of_stages
from smdist.modelparallel.core.planner.evaluate import Evaluator

KIB = 1 << 10
ONE_A_RANK = ("1f1b", "simple", "interleaved", "zero_bubble")
NEAR = 1.1  # cuts balance loads; with few units, uneven ones can fill the bubble better


class Net:
    """Units at random, in a chain or in two towers that meet in the last unit."""

    def __init__(self, draw, *, towers):
        self.count, self.batch = draw.randint(3, 6), draw.choice([2, 4, 6])
        self.towers, self.is_tied = towers, draw.random() < 0.3
        self.fixed = draw.choice([0.0, 0.0, 1e-4])
        numbers = range(self.count)
        self.seconds = [draw.randint(1, 9) * 1e-4 for _ in numbers]
        self.elements = [draw.randint(1, 8) * KIB for _ in numbers]
        self.saved = [draw.randint(0, 20) * KIB for _ in numbers]
        self.workspace = [draw.choice([0, 0, draw.randint(0, 100) * KIB]) for _ in numbers]
        self.sends = [draw.choice([64, 1024, 10240]) for _ in numbers]

    def __call__(self, num_microbatches, _opened):
        samples = self.batch // num_microbatches
        return self.graph(samples), Costs(
            nodes={f"u{at}": self.cost(at, samples) for at in range(self.count)},
            source="measured",
            device="cpu",
        )

    def graph(self, samples):
        nodes = [given(num_bytes=8 * samples)]
        for at in range(self.count):
            own = "u0" if self.is_tied and at == self.count - 1 else f"u{at}"
            nodes.append(
                unit(
                    f"u{at}",
                    *self.reads(at),
                    parameters=[f"{own}.weight"],
                    num_bytes=self.sends[at] * samples,
                )
            )
        sizes = {f"u{at}.weight": number for at, number in enumerate(self.elements)}
        return graph(*nodes, sizes=sizes)

    def reads(self, at):
        half = self.count // 2
        if at == 0 or (self.towers and at == half < self.count - 1):
            return ["ids"]
        if self.towers and at == self.count - 1:
            return list({f"u{half - 1}", f"u{at - 1}"})
        return [f"u{at - 1}"]

    def cost(self, at, samples):
        seconds = self.seconds[at] * samples
        return NodeCost(
            forward_seconds=seconds + self.fixed,
            input_gradient_seconds=seconds,
            weight_gradient_seconds=seconds,
            saved_bytes=self.saved[at] * samples,
            workspace_bytes=self.workspace[at] * samples,
        )


def drawn(seed, *, towers=False, **options):
    """A problem of a few units on 2 or 4 ranks."""
    draw = random.Random(seed)
    net = Net(draw, towers=towers)
    link = Link(
        latency_seconds=draw.choice([0, 1e-5, 1e-4]), bytes_per_second=draw.choice([1e8, 1e11])
    )
    ranks = draw.choice([2, 4])
    cluster = Cluster(ranks_per_host=ranks, inside=link, device=Device(name="cpu"))
    return Problem(cluster=cluster, at=net, batch_size=net.batch, **options)


def everything(asked):
    """Every candidate with every cut, simulated, and what searches for it: limits are ignored."""
    samples = Samples(asked, frozenset(), microbatch_choices(asked))
    for count in microbatch_choices(asked):
        samples.exact(count)
    evaluator = Evaluator(asked, samples)
    for candidate in candidates(asked, len(placed_units(samples.smallest.graph))):
        view = samples.view(candidate.num_microbatches)
        for stage_of in cuts([each.name for each in placed_units(view.graph)], candidate):
            try:
                found = assigned(
                    view.graph,
                    view.costs,
                    stage_of,
                    num_stages=candidate.num_stages,
                    rank_of=rank_of_stages(candidate),
                    state=asked.state,
                )
                yield evaluator, evaluator.simulate(candidate, split(view.graph, found))
            except OptionError:  # a schedule that these numbers do not go with
                continue


def cuts(names, candidate):
    """Stages by unit, in every way that leaves their order."""
    for inner in combinations(range(1, len(names)), candidate.num_stages - 1):
        runs = enumerate(pairwise([0, *inner, len(names)]))
        yield {name: stage for stage, (begin, end) in runs for name in names[begin:end]}


def planned(asked):
    """Seconds per sample of the plan; None where there is none."""
    try:
        return 1 / find_plan(asked).forecast.samples_per_second
    except PlanError:
        return None


@pytest.mark.parametrize("towers", [False, True])
def test_no_plan_is_much_faster_than_the_planners(towers):
    """Of all cuts and schedules, without a limit of memory: and none is slower than itself."""
    for seed in range(15):
        asked = drawn(seed, towers=towers)
        best = min(trial.seconds_per_sample for _, trial in everything(asked))

        assert best * (1 - 1e-6) <= planned(asked) <= best * NEAR, seed


@pytest.mark.parametrize("schedule", ONE_A_RANK)
def test_plan_is_found_wherever_one_fits(schedule):
    """With one stage a rank, at limits around what the leanest plan of all needs."""
    for seed in range(8):
        asked = drawn(seed, schedule=schedule, virtual_stages=1)
        least = min(trial.peak_bytes for _, trial in everything(asked))

        assert planned(replace(asked, device_memory=least - 1)) is None, seed
        for share in (1.0, 1.05, 1.3):
            limit = int(least * share)
            assert planned(replace(asked, device_memory=limit)) is not None, (seed, share)


@pytest.mark.parametrize("towers", [False, True])
def test_no_candidate_beats_its_lower_bounds(towers):
    """What is known by arithmetic never exceeds the simulation: branches run beside each other."""
    for seed in range(8):
        for evaluator, trial in everything(drawn(seed, towers=towers)):
            simulated = trial.timeline.step_seconds * (1 + 1e-9)

            assert trial.pipeline.least_seconds() <= simulated, (seed, trial.candidate)
            assert evaluator.at_least(trial.candidate) <= trial.seconds_per_sample * (1 + 1e-9)


class Working(Model):
    """Passes take workspace by the sample."""

    def costs(self, samples=1, opened=frozenset()):
        found = super().costs(samples, opened)
        work = 64 * MIB * samples
        nodes = {name: replace(cost, workspace_bytes=work) for name, cost in found.nodes.items()}
        return replace(found, nodes=nodes)


def test_smaller_microbatches_fit_where_larger_ones_did_not():
    """They keep as much under way, and work on less at a time."""
    model = Working((1e-3,) * 2, fixed_seconds=1e-3)
    plan = find_plan(problem(model, ranks=1, schedule="simple", device_memory=200 * MIB))

    assert 8 == plan.num_microbatches


def towers_by_hand(limit):
    """One keeps much, the other has much state; marks put the second one first."""
    net = graph(
        given(),
        unit("a", "ids"),
        unit("b", "ids"),
        unit("c", "a", "b"),
        sizes={"b.weight": 100 * MIB // 16},
    )
    saved = {"a": 100 * MIB, "b": 0, "c": 0}
    nodes = {name: NodeCost(forward_seconds=1e-3, saved_bytes=size) for name, size in saved.items()}
    costs = Costs(nodes=nodes, source="measured", device="cpu")
    return Problem(
        cluster=Cluster(ranks_per_host=2, device=Device(name="cpu")),
        at=lambda _count, _opened: (net, costs),
        batch_size=4,
        microbatches=4,
        schedule="1f1b",
        auto_partition=False,
        marks={"a": 1, "b": 0, "c": 1},
        default_partition=0,
        device_memory=limit,
    )


def test_stages_by_hand_may_be_in_another_order():
    """What fits is planned, although no run of the order of execution would fit."""
    plan = find_plan(towers_by_hand(110 * MIB))

    assert (("b",), ("a", "c")) == plan.stages


@pytest.mark.parametrize("schedule", ["zero_bubble_v", "interleaved_1f1b"])
def test_stages_of_a_rank_share_workspace_and_tied_parameters(schedule):
    """At the limit that the error names as enough, there is a plan."""
    fitted = 0
    for seed in range(60, 80):
        options = {"pipeline_parallel_degree": 2, "schedule": schedule, "virtual_stages": 2}
        asked = drawn(seed, **options)
        peaks = [trial.peak_bytes for _, trial in everything(asked)]
        if peaks and planned(replace(asked, device_memory=int(min(peaks) * 1.02))):
            fitted += 1
        for share in (1.0, 1.05) if peaks else ():
            limit = int(min(peaks) * share)
            try:
                find_plan(replace(asked, device_memory=limit))
            except PlanMemoryError as error:
                named = error.least_bytes

                assert limit < named, (seed, share)

    assert fitted


def test_model_without_modules_is_refused():
    """There is no number of stages to ask for."""
    empty = graph(given())
    costs = Costs(nodes={}, source="measured", device="cpu")
    asked = Problem(
        cluster=Cluster(device=Device(name="cpu")), at=lambda _n, _o: (empty, costs), batch_size=1
    )

    with pytest.raises(PlanError) as error:
        find_plan(asked)

    assert (("model",), "no_modules") == (error.value.about, error.value.kind)
