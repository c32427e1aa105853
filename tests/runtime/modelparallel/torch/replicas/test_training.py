# SPDX-License-Identifier: Apache-2.0
"""Steps, updates and evaluations in turn, for each way of sharing out what replicas hold."""

import pytest
import tied
import torch
import torch.distributed as dist
from replicated import Pipeline, Replicated, furthest, plain_step
from torch import nn
from torch.distributed.tensor import DTensor
from zoo import Specimen

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.torch.replicas import fsdp_shards

SHARDINGS = ("none", "optimizer", "full", "optimizer, often", "full, often")
PIPELINE = Pipeline(num_microbatches=2)


def replicated(specimen, size, sharding, pipeline=PIPELINE, **options):
    """A model on replicas; ", often" reduces gradients in each backward pass."""
    kind, _, often = sharding.partition(", ")
    reduction = "microbatch" if often else "step"
    return Replicated(
        specimen, pipeline, size, sharding=kind, gradient_reduction=reduction, **options
    )


def trained(rank, size, sharding):
    """Three updates, with an evaluation before each; values here and in one process."""
    torch.set_num_threads(1)
    whole, mine = tied.specimen(), replicated(tied.specimen(), size, sharding)
    parameters = whole.model.parameters(), mine.replicas.parameters.values()
    mine.replicas.rest()  # nothing has run yet
    optimizers = [torch.optim.SGD(each, lr=0.1, momentum=0.9) for each in parameters]
    for _ in range(3):
        losses = mine.step(backward=False)
        expected = plain_step(whole, 4).losses
        mine.step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if losses is not None:
            torch.testing.assert_close(losses, expected[mine.first :][:2])
    return furthest(dict(whole.model.named_parameters()), mine.values())


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_training_is_that_of_one_process(world, sharding):
    """What an evaluation gathers is not what is updated."""
    for error, name in world.run(trained, sharding, hosts="aabb"):
        assert error < 1e-6, name


def evaluated_within(rank, size, sharding):
    """Two series of microbatches in one step, with an evaluation between them."""
    torch.set_num_threads(1)
    mine = replicated(tied.specimen(), size, sharding)
    hooks, replicas = mine.executor._hooks, mine.replicas
    replicas.begin()
    for is_last in (False, True):
        mine.executor._hooks = hooks if is_last else None
        mine.run()
        mine.run(backward=False)
        replicas.rest()
    replicas.finish()
    twice = {
        name: 2 * g for name, g in plain_step(tied.specimen(), 4).gradients.items() if g is not None
    }
    return furthest(twice, mine.gradients())


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_an_evaluation_amid_accumulation_loses_no_gradient(world, sharding):
    """What has been added up waits for the reduction."""
    for error, name in world.run(evaluated_within, sharding, hosts="aabb"):
        assert error < 1e-6, name


def gathered(rank, size, sharding):
    """Whether the last layer is whole: after each forward pass, and after the step."""
    torch.set_num_threads(1)
    mine = replicated(tied.specimen(), size, sharding)
    (stage,) = mine.stages.values()
    name = "norm" if mine.groups.pp_rank else "layers.0"
    seen = []

    class Watch(type(mine.replicas)):
        def before_backward(self, stage, is_last):
            seen.append(is_whole())

    def is_whole():
        return not isinstance(stage.get_submodule(name).weight, DTensor)

    mine.replicas.__class__ = Watch
    mine.step()
    elements = sum(getattr(p, "_local_tensor", p).numel() for p in stage.parameters())
    return seen, is_whole(), elements / sum(p.numel() for p in stage.parameters())


@pytest.mark.parametrize(
    ("sharding", "between"),
    [("optimizer", True), ("full", False), ("optimizer, often", True), ("full, often", False)],
)
def test_when_parameters_are_whole(world, sharding, between):
    """Between forward and backward passes with "optimizer" alone, after a step with neither."""
    for seen, after, held in world.run(gathered, sharding, hosts="aabb"):
        assert [between] * 2 == seen
        assert not after
        assert held < 0.6


def in_bf16(rank, size, schedule, virtual):
    """How far gradients are from those in float32, split in bfloat16 and whole in bfloat16."""
    torch.set_num_threads(1)
    expected = plain_step(tied.specimen(), 4).gradients
    low = tied.specimen()
    low.model.bfloat16()
    rough = plain_step(low, 4).gradients
    pipeline = Pipeline(schedule=schedule, num_microbatches=2, virtual_stages=virtual)
    mine = Replicated(tied.specimen(), pipeline, size, sharding="full", bf16=True)
    mine.step()
    found = mine.gradients()
    kinds = {gradient.dtype for gradient in found.values()}
    rough = {name: rough[name].float() for name in found}
    return furthest(expected, found)[0], furthest(expected, rough)[0], kinds


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("zero_bubble_v", 2)])
def test_bfloat16_is_as_exact_as_in_one_process(world, schedule, virtual):
    """And gradients are float32, as parameters are."""
    for error, rough, kinds in world.run(in_bf16, schedule, virtual, hosts="aabb"):
        assert 1e-4 < error < 3 * rough
        assert {torch.float32} == kinds


def hybrid(rank, size):
    """Gradients of two copies of shards over two ranks each, and in one process."""
    torch.set_num_threads(1)
    pipeline = Pipeline(num_ranks=1, num_microbatches=2)
    mine = replicated(tied.specimen(), size, "full, often", pipeline, shard_degree=2)
    errors = []
    for _ in range(2):
        mine.step()
        errors.append(furthest(plain_step(tied.specimen(), 8).gradients, mine.gradients()))
        for parameter in mine.replicas.parameters.values():
            parameter.grad = None
    return errors


def test_copies_of_shards_that_reduce_often_have_the_gradients_of_one_process(world):
    """Sums over the copies of the last microbatch have those of the earlier ones in them."""
    for errors in world.run(hybrid, hosts="aabb"):
        for error, name in errors:
            assert error < 1e-6, name


def largest_whole(rank, size, sharding):
    """Bytes of the whole gradients after each backward pass, as a fraction of all of them."""
    torch.set_num_threads(1)
    mine = replicated(tied.specimen(), size, sharding)
    (stage,) = mine.stages.values()
    seen = []

    class Watch(type(mine.replicas)):
        def after_backward(self, number, is_last):
            parts = [p for g in fsdp_shards._groups(stage) for p in g.fsdp_params]
            held = [p.unsharded_accumulated_grad for p in parts]
            held += [getattr(p, "_unsharded_param", p.sharded_param).grad for p in parts]
            seen.append(sum(g.numel() for g in held if g is not None and not is_shard(g)))
            super().after_backward(number, is_last)

    def is_shard(gradient):
        return isinstance(gradient, DTensor)

    mine.replicas.__class__ = Watch
    mine.step()
    return seen


def test_no_gradient_is_whole_between_microbatches_that_reduce(world):
    """With one reduction per step, all gradients of the stage are."""
    for often in world.run(largest_whole, "full, often", hosts="aabb"):
        assert [0, 0] == often
    for seldom in world.run(largest_whole, "full", hosts="aabb"):
        assert min(seldom) > 0


class Deciding(nn.Module):
    """One of two layers, by the sign of what comes in, which stays."""

    def __init__(self):
        super().__init__()
        self.some, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        layer = self.some if x.sum() > 0 else self.other
        return x + 0.1 * torch.tanh(layer(x))


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Deciding() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def choice(*signs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Specimen(model=Choice(), batch=(torch.tensor(signs).view(-1, 1).repeat(1, 3),))


def of_one_replica(rank, size, sharding):
    """Replica 0 goes one way, replica 1 the other; then both the same."""
    torch.set_num_threads(1)
    found = []
    for signs in ((3.0, 3.0, -3.0, -3.0), (3.0, 3.0, 3.0, 3.0)):
        mine = replicated(choice(*signs), size, sharding)
        mine.step()
        expected = plain_step(choice(*signs), 4).gradients
        gradients = mine.gradients()
        lost = [name for name, g in gradients.items() if (g is None) != (expected[name] is None)]
        found.append((*furthest(expected, gradients), lost))
    return found


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_parameters_that_one_replica_does_not_use(world, sharding):
    """What none uses has no gradient."""
    for steps in world.run(of_one_replica, sharding, hosts="abab"):
        for error, name, lost in steps:
            assert error < 1e-6, name
            assert not lost


def on_gloo(rank, size, store, sharding):
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{store}-{sharding}", size), rank=rank, world_size=size
    )
    return trained(rank, size, sharding)


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_other_backends(world, tmp_path, sharding):
    """gloo has no means of its own."""
    for error, name in world.run(on_gloo, str(tmp_path / "store"), sharding):
        assert error < 1e-6, name


def statistics(rank, size):
    """Running means before and after they are shared, with one rank a replica."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    specimen = Specimen(model=model, batch=(torch.arange(16.0).view(8, 2),))
    mine = Replicated(specimen, Pipeline(num_ranks=1, num_microbatches=2), size)
    mine.step()
    before = model[0].running_mean.tolist()
    mine.replicas.broadcast_buffers()
    return before, model[0].running_mean.tolist(), model[0].num_batches_tracked.item()


def test_statistics_are_those_of_the_first_replica_where_asked(world):
    """Each has its own until then."""
    (first, shared, count), (second, alike, also) = world.run(statistics, size=2)

    assert first != second
    assert first == shared == alike
    assert 2 == count == also


def refused(rank, size, options):
    with pytest.raises(OptionError) as caught:
        Replicated(tied.specimen(), PIPELINE, size, **options)
    return [part.about for part in parts_of(caught.value)]


def test_what_does_not_go_together_is_refused_by_name(world):
    """All at once, and before anything is sent."""
    both = world.run(refused, {"sharding": "half", "shard_degree": 3})[0]
    degree = world.run(refused, {"sharding": "full", "shard_degree": 3})[0]
    unknown = world.run(refused, {"sharding": "half"})[0]

    whole = world.run(refused, {"gradient_reduction": "microbatch"})[0]
    never = world.run(refused, {"gradient_reduction": "never", "sharding": "half"})[0]

    assert [("gradient_reduction",)] == whole
    assert [("sharding",), ("gradient_reduction",)] == never
    assert [("sharding",), ("shard_degree",)] == both
    assert [("shard_degree",)] == degree
    assert [("sharding",)] == unknown
