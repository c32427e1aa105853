# SPDX-License-Identifier: Apache-2.0
"""Sequences split between split layers: the numbers of one process, with smaller activations."""

import os
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from blocks import Kept
from tensor_matrix import TensorCase, compared
from tensor_matrix import alone as one_process
from tensor_models import WIDTH, alone, batches, loss_of, made, split, train, worst
from tensor_models import whole as whole_of

import smdist.modelparallel.torch as smp
from sagemaker_dist import ModelParallel
from smdist.modelparallel.core.placement import place
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.measure import with_slices
from smdist.modelparallel.torch.tensor_parallel import find
from smdist.modelparallel.torch.tensor_parallel.planned_splits import AbsentPeers
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import SimulatedRanks
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model

STEPS, LENGTH = 20, 16


def start(degree, stages=1, *, sliced=True, **options):
    degrees = {"tensor_parallel_degree": degree, "pipeline_parallel_degree": stages}
    smp.init(ModelParallel(**degrees, microbatches=2, sequence_parallel=sliced, **options))


def trained(rank, size, name, degree, stages=1, options=()):
    start(degree, stages, **dict(options))
    model, optimizer = split(name)
    found = train(model, optimizer)
    found.split = [region.is_sliced for region in model.tensor_plan.regions]
    return found


@pytest.mark.parametrize(
    ("name", "degree", "stages", "size", "options"),
    [
        pytest.param("gpt2", 2, 1, 2, {}, marks=pytest.mark.slow),
        ("llama", 2, 2, 4, {"pipeline": "zero_bubble"}),
        pytest.param("gpt2", 4, 1, 4, {}, id="slices of two lengths", marks=pytest.mark.slow),
        pytest.param("mlp", 2, 1, 2, {}, marks=pytest.mark.slow),
        pytest.param("llama", 4, 1, 4, {}, marks=pytest.mark.slow),
        pytest.param("gpt2", 2, 2, 4, {"pipeline": "1f1b"}, marks=pytest.mark.slow),
        pytest.param("written", 2, 2, 4, {"pipeline": "interleaved_1f1b"}, marks=pytest.mark.slow),
        pytest.param("experts", 2, 1, 2, {}, marks=pytest.mark.slow),
        pytest.param("encoder", 2, 1, 2, {}, marks=pytest.mark.slow),
        pytest.param("gpt2", 2, 1, 4, {"sharding": "full"}, marks=pytest.mark.slow),
        pytest.param("llama", 2, 1, 4, {"sharding": "optimizer"}, marks=pytest.mark.slow),
    ],
)
def test_gradients_losses_and_weights_are_as_in_one_process(
    world, name, degree, stages, size, options
):
    """Weights are those of a whole checkpoint."""
    found = world.run(trained, name, degree, stages, tuple(options.items()), size=size, deadline=80)
    expected = alone(name)
    grads = {key: value for rank in found for key, value in rank.grads.items()}
    means = [sum(each) / size for each in zip(*(rank.losses for rank in found), strict=True)]

    assert sum(found[0].split) >= 3
    assert worst({key: grads[key] for key in expected.grads}, expected.grads) < 1e-9
    assert worst(found[0].state, expected.state) < 2e-8
    assert expected.losses == pytest.approx(means, rel=1e-8)


SAMPLE = (
    TensorCase(model="gpt2", stages=2, dropout=0.1, sequence=True),
    TensorCase(model="llama", replicas=2, stages=2, sequence=True),
    TensorCase(model="t5", stages=2, dropout=0.1, sequence=True),
    TensorCase(model="vit", tensor=4, dropout=0.1, sequence=True),
    TensorCase(model="gpt_oss", dropout=0.1, sequence=True),
    TensorCase(model="mamba", dropout=0.1, sequence=True),
    TensorCase(model="dyn", sequence=True),
)
MORE = (  # `make tensor-sequences` runs these, too
    TensorCase(model="gpt2", dropout=0.1, sequence=True),
    TensorCase(model="gpt2", tensor=4, dtype="float64", sequence=True),
    TensorCase(model="llama", dropout=0.1, sequence=True),
    TensorCase(model="llama", stages=2, sequence=True),
    TensorCase(model="llama", tensor=4, sequence=True),
    TensorCase(model="bert", dropout=0.1, sequence=True),
    TensorCase(model="whisper", dropout=0.1, sequence=True),
    TensorCase(model="mixtral", sequence=True),
    TensorCase(model="qwen3_moe", sequence=True),
    TensorCase(model="gemma3", stages=2, sequence=True),
    TensorCase(model="deepseek_v3", sequence=True),
)
IS_WHOLE = os.environ.get("SMDIST_TEST_SEQUENCES") == "all"
CASES = (*SAMPLE, *(MORE if IS_WHOLE else ()))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_models_train_as_in_one_process(world, case):
    found = compared(world, case, one_process(case, STEPS))

    assert 1e-5 >= found.gradient, found
    assert 1e-5 >= found.loss, found
    assert (found.sliced > 0) is (case.model != "dyn"), found  # which has no sequences


@smp.step
def mean_step(model, ids):
    loss = model(ids).logits.mean()
    model.backward(loss)
    return loss


def saved_bytes(rank, size, name, sliced):
    start(size, sliced=sliced)
    model, _ = split(name)
    ids, kept = torch.zeros(8, LENGTH, dtype=torch.int64), Kept()
    mean_step(model, ids)  # splits the model
    kept.ignore([*model.parameters(), *model.buffers()])
    with kept.counting():
        mean_step(model, ids)
    return kept.most, model.plan.forecast.memory[0].activation_bytes


@pytest.mark.parametrize(
    ("name", "size"), [("gpt2", 2), pytest.param("llama", 4, marks=pytest.mark.slow)]
)
def test_each_rank_saves_a_slice_of_the_inputs_and_outputs_of_norms(world, name, size):
    """There are 5 norms; between split layers, other values are split anyway."""
    found = [world.run(saved_bytes, name, each, size=size, deadline=80) for each in (False, True)]
    whole, sliced = ([saved for saved, _ in ranks] for ranks in found)
    value_bytes = 4 * LENGTH * WIDTH * 8

    assert min(whole) - max(sliced) >= 10 * value_bytes * (1 - 1 / size), (whole, sliced)
    for saved, planned in (each for ranks in found for each in ranks):
        assert saved == pytest.approx(planned, rel=0.05)


def stages_trained(ranks, rank, whole, plan, captured, ids):
    """Train one step in two stages on one of some simulated ranks; return whole gradients."""
    model, peers = deepcopy(whole), ranks.peers(rank)
    split_model(model, plan, peers)
    splits = {key: replace(each, peers=peers) for key, each in captured.program.splits.items()}
    own = replace(captured, model=model, program=replace(captured.program, splits=splits))
    placement = place(own.graph, halves(own.graph))
    first, second = (StageModule(own, placement, at) for at in (0, 1))
    sent = first({}, ((ids,), {}))
    received = {key: each.detach().requires_grad_() for key, each in sent.items()}
    loss_of(second.output(second(received, ((ids,), {}))), ids).backward()
    torch.autograd.backward(list(sent.values()), [received[key].grad for key in sent])
    sizes = {key: each.nbytes for key, each in sent.items()}
    return sizes, {key: whole_of(p.grad, p) for key, p in model.named_parameters()}


def halves(graph):
    return {unit.name: int(at > 4) for at, unit in enumerate(graph.units)}


def test_stages_pass_on_slices_and_their_gradients():
    """The value between them has the bytes that the planner counts: half of the whole ones."""
    model, ids = made("mlp"), batches(1)[0]
    plan = find(model, ((ids,), {}), 2, sequence_parallel=True)
    copy, ranks = deepcopy(model), SimulatedRanks(2)
    split_model(copy, plan, AbsentPeers(2))
    recorded = capture(copy, ids)
    captured = with_slices(recorded)
    planned, whole = (
        {edge.value: edge.num_bytes for edge in place(each.graph, halves(each.graph)).edges}
        for each in (captured, recorded)
    )
    loss_of(model(ids), ids).backward()
    expected = {key: p.grad for key, p in model.named_parameters()}

    found = ranks.run(lambda rank: stages_trained(ranks, rank, model, plan, captured, ids))

    assert whole == {key: 2 * size for key, size in planned.items()}
    for sizes, grads in found:
        assert planned == sizes
        assert worst(grads, expected) < 1e-12


class Mlps(torch.nn.Module):
    """MLPs with a sum over positions in the residual stream between them, and a head."""

    def __init__(self):
        super().__init__()
        self.mlps = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
            for _ in range(2)
        )
        self.head = torch.nn.Linear(8, 64)

    def forward(self, x):
        for mlp in self.mlps:
            x = x + mlp(x).cumsum(1)
        return self.head(x)


@pytest.mark.parametrize(
    ("shape", "compiled", "kinds"),
    [
        ((4, 6, 8), False, ["", "", "no_sum"]),
        ((4, 1, 8), False, ["no_sequence", "no_sequence", "no_sum"]),
        ((4, 8), False, ["no_sequence", "no_sequence", "no_sum"]),
        ((4, 6, 8), True, ["compiled"] * 3),
    ],
)
def test_regions_that_cannot_be_sliced_say_why(shape, compiled, kinds):
    model, given = Mlps(), ((torch.zeros(shape),), {})
    if compiled:
        model.mlps[0]._compiled_call_impl = model.mlps[0]._call_impl  # nn.Module.compile sets it
    plan = find(model, given, 2, sequence_parallel=True)
    plain = find(model, given, 2)

    assert kinds == [each.unsliced.kind if each.unsliced else "" for each in plan.regions]
    assert [not kind for kind in kinds] == [each.is_sliced for each in plan.regions]
    assert "  whole sequence: " in plan.summary()
    assert not any(each.is_sliced or each.unsliced for each in plain.regions)
    assert "sequence" not in plain.summary()
