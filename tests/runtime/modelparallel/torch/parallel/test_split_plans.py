# SPDX-License-Identifier: Apache-2.0
"""Plans that split layers over ranks: the search knows what this costs, and a job runs the plan."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from replicated import whole
from torch import nn
from torch.nn.functional import cross_entropy

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.core.layout import Machine
from smdist.modelparallel.core.layout.explain_layout import explain
from smdist.modelparallel.core.note import NOT_SEARCHED
from smdist.modelparallel.torch.parallel.settings import DEFAULT_HORIZON, Settings, with_plan
from smdist.modelparallel.torch.planning.layout_plan import FixedShards, plan_with_layout
from smdist.modelparallel.torch.tensor_parallel import find
from smdist.modelparallel.torch.tensor_parallel.planned_splits import split_copies

WIDTH, TOKENS, ROWS, WORDS = 32, 8, 4, 24


class Block(nn.Module):
    """Attention of two heads by torch, and a network of two layers four times as wide."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.narrow(torch.tanh(self.wide(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return cross_entropy(self.head(self.blocks(self.embed(ids))).flatten(0, 1), ids.flatten())


def net():
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net()


def ids():
    return torch.randint(WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(1))


def machine(ranks, name="A100", host_speed=16e9):
    device = Device(name=name, memory_bytes=1 << 30, flops_per_second=1e9, bytes_per_second=1e9)
    link = Link(latency_seconds=1e-6, bytes_per_second=1e9)
    cluster = Cluster(ranks_per_host=ranks, inside=link, across=link, device=device)
    return Machine(cluster=cluster, host_bytes_per_second=host_speed)


def planned(ranks, *, memory=None, fixed=None, name="A100", host_speed=16e9, **options):
    with torch.device("meta"):
        model = Net()
    return plan_with_layout(
        model, ids(), machine(ranks, name, host_speed), state=StateBytes(), device_memory=memory,
        shards=fixed or FixedShards(), **options,
    )  # fmt: skip


@smp.step
def train(model, x):
    loss = model(x)
    model.backward(loss)
    return loss


def from_file(rank, size, path):
    """One step of a job that takes a plan: the degrees, and the error of its gradients."""
    smp.init(smp.ModelParallel(plan=path))
    model = smp.DistributedModel(net())
    train(model, ids())
    expected = net()
    for part in ids().chunk(model.plan.num_microbatches):
        (expected(part) / model.plan.num_microbatches).backward()
    grads = {name: p.grad for name, p in expected.named_parameters()}
    found = {name: p.grad for name, p in model.named_parameters()}
    halves = [name for name, each in found.items() if whole(each).shape != grads[name].shape]
    error = max(
        (whole(each) - grads[name]).abs().max().item()
        for name, each in found.items()
        if name not in halves
    )
    return smp.tp_size(), smp.pp_size(), len(halves), error


def test_a_job_runs_a_plan_that_splits_layers(world, tmp_path):
    """Two stages of two ranks each; the plan alone says so, and its stages are those of the job."""
    made = planned(4, fixed=FixedShards(tensor=2), pipeline_parallel_degree=2, microbatches=2)
    path = str(tmp_path / "plan.json")
    made.plan.save(path)

    assert (2, 4) == (made.plan.tensor_parallel_degree, made.plan.world_size)
    assert not made.plan.is_stale
    for tensor, pipeline, halves, error in world.run(from_file, path, size=4):
        assert (2, 2) == (tensor, pipeline)
        assert halves > 0
        assert error < 1e-6


class Wide(nn.Module):
    """Two layers with many values between them, which one microbatch computes one after another."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 8192), nn.Linear(8192, WIDTH)

    def forward(self, x):
        return self.narrow(torch.tanh(self.wide(x))).square().mean()


def wide():
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Wide()


def searched(rank, size, options):
    """One step of a job that searches its layout: degrees, notes, and the error of its loss."""
    smp.init(smp.ModelParallel(sharding="auto", microbatches=1, **options))
    x = torch.randn(1, 512, WIDTH, generator=torch.Generator().manual_seed(1))
    model = smp.parallelize(wide(), costs="estimate")
    loss = train(model, x).reduce_mean()
    notes = [note.text for note in model.plan.notes if note.kind == NOT_SEARCHED]
    parts = model.module.wide.weight.shape[0] if smp.pp_rank() == 0 else None
    return smp.tp_size(), model.plan, parts, notes, abs(loss - wide()(x)).item()


@pytest.mark.parametrize(
    ("options", "tensor"),
    [({"device_memory": "32MiB"}, 2), ({"pipeline_parallel_degree": 1}, 1)],
)
def test_the_search_of_a_job_splits_layers(world, options, tensor):
    """Where groups are not made before, half of the wide layer is on each rank."""
    for degree, plan, rows, notes, error in world.run(searched, options, size=2):
        assert tensor == degree == plan.tensor_parallel_degree
        assert 8192 // tensor == rows
        assert (tensor == 1) == ("process groups exist already" in " ".join(notes))
        assert error < 1e-6


def test_the_plan_counts_the_part_of_a_rank():
    """Weights, gradients and optimizer state of split layers are half as large on each rank."""
    plan = planned(2, fixed=FixedShards(tensor=2), pipeline_parallel_degree=1).plan
    with torch.device("meta"):
        model = Net()
    copies, why = split_copies(model, ((ids()[:1],), {}), 1, [2])
    whole_elements = sum(p.numel() for p in model.parameters())
    elements = sum(p.numel() for p in copies[2].model.parameters())

    assert "" == why
    assert 16 * elements == plan.forecast.memory[0].state_bytes
    assert elements < 0.6 * whole_elements


def test_each_pair_of_products_has_one_message_in_each_pass():
    """Attention and the wide layers sum their output, and the gradient of their input."""
    with torch.device("meta"):
        model = Net()
    copies, _ = split_copies(model, ((ids()[:1],), {}), 1, [2])
    messages = copies[2].messages
    one = TOKENS * WIDTH * 4  # bytes of the residual of a sample in float32

    assert ((one,), (one,)) == (
        messages["blocks.0.attention"].forward, messages["blocks.0.attention"].backward
    )  # fmt: skip
    assert ((), (one,)) == (
        messages["blocks.0.wide"].forward, messages["blocks.0.wide"].backward
    )  # fmt: skip
    assert ((one,), ()) == (
        messages["blocks.0.narrow"].forward, messages["blocks.0.narrow"].backward
    )  # fmt: skip


def test_a_split_that_is_carried_to_more_ranks_is_the_one_that_is_found_there():
    """Two heads are not divided by 4, so attention stays whole; the wide layers are split."""
    with torch.device("meta"):
        model = Net()
    arguments = ((ids()[:1],), {})
    copies, _ = split_copies(model, arguments, 1, [2, 4])
    names = {each.name for each in copies[4].plan.modules}

    assert find(model, arguments, 4).regions == copies[4].plan.regions
    assert "blocks.0.wide" in names
    assert "blocks.0.attention" not in names


def test_splits_that_can_save_little_are_not_tried():
    """The proof of a split takes most of the time of a plan."""
    found = planned(2)

    assert "computes for" in found.unsplit
    assert {1} == {each.layout.tensor for each in found.search.families}


def test_the_search_names_families_with_split_layers(monkeypatch):
    """The families are searched with all others, and each has a line of its own."""
    module = import_module("smdist.modelparallel.core.layout.find_layout")
    monkeypatch.setattr(module, "BUSY", 1.1)  # no step only computes
    search = planned(2).search
    names = {each.layout.family for each in search.families}

    assert "tensor" in names
    assert all(each.time.tensor > 0 for each in search.families if each.layout.tensor > 1)


def test_activations_go_to_the_host_where_they_do_not_fit():
    """Offload is tried on accelerators alone, and the plan of stages counts no activations then."""
    fixed = FixedShards(tensor=1, offload=True)
    kept = planned(1, fixed=FixedShards(tensor=1, offload=False), microbatches=1).plan
    moved = planned(1, fixed=fixed, microbatches=1).plan
    slow = planned(1, fixed=fixed, microbatches=1, host_speed=1e6).plan

    assert kept.forecast.memory[0].activation_bytes > 0 == moved.forecast.memory[0].activation_bytes
    assert moved.offload_activations
    assert moved.forecast.step_seconds == kept.forecast.step_seconds  # computation hides copies
    assert slow.forecast.step_seconds > kept.forecast.step_seconds
    assert not planned(1, fixed=fixed, name="cpu", microbatches=1).plan.offload_activations


def test_a_job_offloads_as_its_plan_says():
    """The horizon is the default one; the option of the job decides where the plan has none."""
    plan = planned(1, fixed=FixedShards(tensor=1, offload=True), microbatches=1).plan
    without = replace(plan, offload_activations=False)
    own = Settings(options=smp.ModelParallel(), offload_horizon=2)

    assert DEFAULT_HORIZON == with_plan(Settings(options=smp.ModelParallel()), plan).offload_horizon
    assert 2 == with_plan(own, plan).offload_horizon
    assert with_plan(Settings(options=smp.ModelParallel()), without).offload_horizon is None


def test_a_plan_of_split_layers_gets_a_new_forecast():
    """The forecast of an edited plan splits the layers as the plan says."""
    plan = planned(2, fixed=FixedShards(tensor=2), microbatches=2).plan
    with torch.device("meta"):
        model = Net()
    again = smp.forecast(replace(plan, num_microbatches=4), model, ids(), machine(2).cluster)

    assert 4 * (ROWS // 4) == again.batch_size
    assert not again.is_stale
    assert again.forecast.memory[0].state_bytes == plan.forecast.memory[0].state_bytes
    with pytest.raises(OptionError) as caught:
        smp.forecast(replace(plan, tensor_parallel_degree=3), model, ids(), machine(2).cluster)
    assert ("tensor_parallel_degree",) == caught.value.about


def test_options_that_contradict_the_degree_are_refused(world, tmp_path):
    """The error names the option; both degrees are reported together."""
    made = planned(4, fixed=FixedShards(tensor=2), pipeline_parallel_degree=2, microbatches=2)
    path = str(tmp_path / "plan.json")
    made.plan.save(path)
    for faults in world.run(refused, path, size=4):
        assert [("pipeline_parallel_degree",), ("tensor_parallel_degree",)] == faults


def refused(rank, size, path):
    options = {"tensor_parallel_degree": 4, "pipeline_parallel_degree": 1}
    try:
        smp.init(smp.ModelParallel(plan=path, **options))
    except OptionError as error:
        return sorted(each.about for each in getattr(error, "faults", (error,)))
    return []


class Odd(nn.Module):
    """Layers with no pair of products, so that nothing can be split."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(3, 3)

    def forward(self, x):
        return self.only(x).sum()


def test_a_model_that_cannot_be_split_is_planned_whole():
    """The reason is told, and other layouts are searched as always."""
    with torch.device("meta"):
        model = Odd()
    found = plan_with_layout(model, torch.zeros(4, 3), machine(2), state=StateBytes())

    assert 1 == found.plan.tensor_parallel_degree
    assert found.unsplit
    assert f"Layers stay whole: {found.unsplit}." in explain(
        found.search, found.machine, found.unsplit
    )
