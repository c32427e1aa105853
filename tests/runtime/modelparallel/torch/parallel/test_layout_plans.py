# SPDX-License-Identifier: Apache-2.0
"""Plans with shards and checkpointed modules: chosen by the planner, saved, and run."""

import io
from contextlib import redirect_stderr
from dataclasses import replace

import pytest
import torch
from replicated import whole
from smp_nets import failure
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.core.note import NOT_SEARCHED

WIDTH, ROWS, PARTS, RANKS = 128, 4, 4, 4


class Block(nn.Module):
    """Two layers of one width, which keep several times their output for backward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.runs = nn.LayerNorm(WIDTH), 0

    def forward(self, x):
        self.runs += 1
        return x + self.second(torch.tanh(self.first(torch.sin(self.norm(x)))))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))

    def forward(self, x):
        return self.blocks(x).square().mean()


def tower():
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tower()


def samples(length):
    return torch.randn(ROWS, length, WIDTH, generator=torch.Generator().manual_seed(1))


@smp.step
def train(model, x):
    loss = model(x)
    model.backward(loss)
    return loss


def plain_gradients(x, parts):
    model = tower()
    for part in x.chunk(parts):
        (model(part) / parts).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def apart(model, x, parts):
    """Largest difference of a gradient from that of one process."""
    expected = plain_gradients(x, parts)
    found = {name: whole(p.grad) for name, p in model.named_parameters()}
    assert expected.keys() == found.keys()
    return max((expected[name] - each).abs().max().item() for name, each in found.items())


def planned(rank, size, length, memory, options):
    """Two steps by the planner's own layout: the plan, the error, and runs of the first block."""
    own = {"pipeline_parallel_degree": 1, "sharding": "auto", "device_memory": memory}
    smp.init(smp.ModelParallel(**{**own, **options}))
    x = samples(length)
    model = smp.parallelize(tower(), costs="estimate")
    block = model.module.blocks[0]
    train(model, x)
    model.zero_grad()
    before = block.runs
    train(model, x)
    plan, runs = model.plan, block.runs - before
    error = apart(model, x, plan.num_microbatches)
    degree = smp.state.cfg.sharded_data_parallel_degree
    return plan, error, runs / plan.num_microbatches, degree


ELEMENTS = sum(p.numel() for p in Tower().parameters())


def test_the_planner_reduces_often_where_whole_gradients_do_not_fit(world):
    """A quarter of the state fits, a quarter and a whole gradient do not."""
    limit = int(7.8 * ELEMENTS)
    for plan, error, runs, degree in world.run(planned, 1, limit, {}, size=RANKS):
        assert ("full", "microbatch") == (plan.sharding, plan.gradient_reduction)
        assert plan.forecast.memory[0].total_bytes <= limit
        assert not plan.is_stale
        assert RANKS == degree
        assert runs >= 1
        assert error < 1e-6


def shown(rank, size, options):
    """The options that rank 0 names as not searched, and what it prints in the first step."""
    smp.init(smp.ModelParallel(**options))
    with redirect_stderr(io.StringIO()) as err:
        model = smp.parallelize(tower(), costs="estimate")
        train(model, samples(1))
    left_out = [note.about for note in model.plan.notes if note.kind == NOT_SEARCHED]
    return left_out, " ".join(err.getvalue().split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["sharding", "tensor_parallel_degree"]),
        ({"sharding": "auto"}, []),
        ({"sharding": "auto", "pipeline_parallel_degree": 1}, ["tensor_parallel_degree"]),
        ({"pipeline_parallel_degree": 2}, []),
        ({"sharding": "auto", "tensor_parallel_degree": 2}, []),
    ],
)
def test_rank_0_says_which_options_the_job_did_not_search(world, options, expected):
    """An option that `sagemaker-dist plan` searches, with the way to search it nevertheless."""
    (left_out, text), *others = world.run(shown, options, size=2)

    assert expected == left_out
    assert ("pass sharding='auto'" in text) == ("sharding" in expected)
    is_told = "Splits of layers over ranks were not" in text
    assert is_told == ("tensor_parallel_degree" in expected)
    assert [""] == [said for _, said in others]


def test_the_planner_checkpoints_what_does_not_fit(world):
    """The first block runs twice for each microbatch, and gradients are those of one process."""
    options = {"microbatches": 1, "gradient_reduction": "step"}
    limit = 120 * ELEMENTS
    for plan, error, runs, _ in world.run(planned, 512, limit, options, size=2):
        assert "blocks.0" in plan.checkpointed
        assert "step" == plan.gradient_reduction
        assert 2 == runs
        assert error < 1e-6


def test_without_need_replicas_keep_all(world):
    """The same search, with memory enough: nothing is computed twice."""
    for plan, error, runs, degree in world.run(planned, 1, "1GiB", {"microbatches": 2}, size=2):
        assert ((), 1) == (plan.checkpointed, runs)
        assert (1 if plan.sharding != "full" else 2) == degree
        assert error < 1e-6


def from_file(rank, size, folder):
    """A plan with shards that is saved, and a job that takes it: the error, and refusals."""
    smp.init(smp.ModelParallel(sharding="auto", pipeline_parallel_degree=1, microbatches=2))
    x = samples(1)
    first = smp.parallelize(tower(), None, x, costs="estimate")
    plan = replace(
        first.plan, sharding="full", shard_degree=2, gradient_reduction="microbatch",
        checkpointed=("blocks.0", "blocks.3"),
    )  # fmt: skip
    if rank == 0:
        plan.save(f"{folder}/plan.json")
    smp.barrier()
    smp.end()
    smp.init(smp.ModelParallel(plan=f"{folder}/plan.json"))
    model = smp.DistributedModel(tower())
    train(model, x)
    error, runs = apart(model, x, 2), [block.runs for block in model.module.blocks]
    smp.end()
    smp.init(smp.ModelParallel(plan=f"{folder}/plan.json", sharding="optimizer", shard_degree=4))
    refused = failure(train, smp.DistributedModel(tower()), x)
    smp.end()
    smp.init(smp.ModelParallel(plan=f"{folder}/plan.json", bf16=True))
    converted = failure(train, smp.DistributedModel(tower()), x)
    return error, runs, refused, converted


def test_a_saved_plan_has_the_shards_and_checkpoints_of_the_job(world, tmp_path):
    """Options that contradict it are refused together, and so is a model converted too early."""
    for error, runs, refused, converted in world.run(from_file, str(tmp_path), size=RANKS):
        assert error < 1e-6
        assert runs[0] - runs[1] == runs[3] - runs[1] == 2
        assert {(("sharding",), "conflict"), (("shard_degree",), "conflict")} == set(refused.faults)
        assert (("sharding",), "conflict") == (converted.about, converted.kind)


def in_half(rank, size):
    """A model in bfloat16 whose shards the planner chooses: the dtype of its parameters."""
    smp.init(smp.ModelParallel(sharding="auto", bf16=True, pipeline_parallel_degree=1))
    model = smp.parallelize(tower(), costs="estimate")
    loss = train(model, samples(1)).reduce_mean()
    return model.plan.sharding, {p.dtype for p in model.parameters()}, loss.item()


@pytest.mark.parametrize("size", [1, 2])
def test_in_16_bits_the_planner_always_shards(world, size):
    """Parameters stay float32 until they are gathered."""
    expected = tower()(samples(1)).item()
    for sharding, kinds, loss in world.run(in_half, size=size):
        assert sharding != "none"
        assert {torch.float32} == kinds
        assert abs(loss - expected) < 0.05 * abs(expected)
