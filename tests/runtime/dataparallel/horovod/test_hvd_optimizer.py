# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer, broadcasts of state, SyncBatchNorm and process sets."""

import copy
import time
import warnings

import pytest
import torch
from hvd_ranks import caught, initialized, strict_warnings
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(number):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(number))


def train(model, optimizer, batches):
    for each in batches:
        optimizer.zero_grad()
        model(each).square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


OPTIONS = [
    {},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"named": True, "process_set": "world"},
    {"groups": "lists"},
]


def trainings(rank, size):
    with initialized() as hvd:
        batches = [batch(number) for number in range(3 * size)]
        one = network()
        whole = [torch.cat(batches[at : at + size]) for at in range(0, len(batches), size)]
        expected = train(one, torch.optim.SGD(one.parameters(), 0.5, momentum=0.9), whole)
        for options in OPTIONS:
            model = network()
            inner = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
            arguments = dict(options)
            if arguments.pop("named", False):
                arguments |= {"named_parameters": model.named_parameters()}
                arguments |= {"process_set": hvd.global_process_set}
            if arguments.get("groups") == "lists":
                arguments["groups"] = [list(model[2].parameters())]
            optimizer = hvd.DistributedOptimizer(inner, **arguments)
            assert isinstance(optimizer, torch.optim.SGD)
            trained = train(model, optimizer, batches[rank::size])
            for mine, right in zip(trained, expected, strict=True):
                assert torch.allclose(right, mine, atol=1e-6)
        model = network()
        for each in model.parameters():
            with torch.no_grad():
                each.add_(rank)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert all(map(torch.equal, network().state_dict().values(), model.state_dict().values()))
        halved = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), 0.01 * (rank + 1)),
            compression=hvd.Compression.fp16,
            backward_passes_per_step=2,
        )
        for number in range(2):
            model(batch(rank + size * number)).sum().backward()
        halved.step()
        hvd.broadcast_optimizer_state(halved, 0)
        group = halved.param_groups[0]
        assert (0.01, (0.9, 0.999), float) == (group["lr"], group["betas"], type(group["lr"]))
        first = halved.state_dict()["state"][0]
        every = hvd.allgather(first["exp_avg"][None])
        assert all(torch.equal(every[0], each) for each in every)
        assert torch.float32 is first["exp_avg"].dtype
        fresh = torch.optim.SGD(model.parameters(), 0.1)
        hvd.broadcast_optimizer_state(fresh, 0)
        assert {} == fresh.state_dict()["state"]


def test_training_is_that_of_one_process(world):
    """Two ranks with halves of each batch train as one process with whole batches."""
    world.run(trainings, size=2)


def corners(rank, size):
    with initialized() as hvd:
        model = network()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
        model(batch(rank)).sum().backward()
        race = caught(AssertionError, optimizer.zero_grad)
        twice = caught(AssertionError, lambda: model(batch(rank)).sum().backward())
        with optimizer.skip_synchronize():
            unreduced = caught(AssertionError, optimizer.step)
        assert "skip_synchronize" == unreduced.about[0]
        optimizer.synchronize()
        reduced = [each.grad.clone() for each in model.parameters()]
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
        assert 0.05 == optimizer.param_groups[0]["lr"]
        every = hvd.allgather(reduced[0][None])
        assert all(torch.equal(every[0], each) for each in every)
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            optimizer.step()
        assert 1 == len(found)
        # a rank without a gradient takes part with zeros
        optimizer.zero_grad()
        if rank == 0:
            model(batch(0)).sum().backward()
        optimizer.step()
        assert 0 < model[0].weight.grad.abs().sum()

        def loss():
            optimizer.zero_grad()
            value = model(batch(rank)).square().mean()
            value.backward()
            return value

        optimizer.step(loss)
        weights = hvd.allgather(model[0].weight.detach()[None])
        assert all(torch.equal(weights[0], each) for each in weights)
        # parameters that are added later are reduced, too
        extra = nn.Parameter(torch.tensor([1.0]))
        optimizer.zero_grad()
        optimizer.add_param_group({"params": [extra]})
        (extra * (rank + 1)).backward()
        optimizer.step()
        assert (size + 1) / 2 == extra.grad.item()
        make = hvd.DistributedOptimizer
        plain = torch.optim.SGD(model.parameters(), 0.1)
        pairs = list(model.named_parameters())
        errors = [
            caught(ValueError, make, plain, [("a", each) for _, each in pairs]),
            caught(ValueError, make, plain, pairs[:1]),
            caught(ValueError, make, plain, backward_passes_per_step=0),
            caught(ValueError, make, plain, op=hvd.Sum, gradient_predivide_factor=2.0),
            caught(ValueError, make, plain, op=hvd.Adasum, groups=2),
            caught(ValueError, make, plain, groups=[[extra]]),
            caught(ValueError, make, plain, groups=0),
        ]
        return race.kind, twice.kind, [each.about[0] for each in errors]


def test_corners_of_the_optimizer(world):
    """Clipping, races, warnings, missing gradients, closures, new parameters, wrong arguments."""
    named = "named_parameters"
    abouts = [named, named, "backward_passes_per_step", "gradient_predivide_factor", "groups"]
    expected = ("race", "race", [*abouts, "groups", "groups"])
    assert [expected] * 2 == world.run(corners, size=2)


def held_gradients(rank, size):
    with initialized() as hvd:
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
        first, second, *_ = params = list(model.parameters())
        flat = torch.zeros(first.numel() + second.numel())
        first.grad = flat[: first.numel()].view_as(first)
        second.grad = flat[first.numel() :].view_as(second)
        model(batch(rank)).sum().backward()
        held = [each.grad for each in params]
        optimizer.synchronize()
        assert all(each.grad is mine for each, mine in zip(params, held, strict=True))
        expected = network()
        sum(expected(batch(each)).sum() for each in range(size)).backward()
        means = [each.grad / size for each in expected.parameters()]
        assert torch.allclose(torch.cat([each.reshape(-1) for each in means[:2]]), flat)
        assert all(map(torch.allclose, means, held))


def test_gradients_are_reduced_where_they_are(world):
    """A script finds the mean in a gradient that it holds, and in the tensor that it views."""
    world.run(held_gradients, size=2)


def adaptive_steps(rank, size):
    with initialized() as hvd:
        shared, own = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        inner = torch.optim.SGD([shared, own], 0.5, momentum=0.5)
        optimizer = hvd.DistributedOptimizer(inner, op=hvd.Adasum)
        for _ in range(2):
            optimizer.zero_grad()
            (shared.sum() + own[rank]).backward()
            optimizer.synchronize()
            optimizer.step()
        refused = caught(ValueError, optimizer.skip_synchronize)
        return shared.tolist(), own.tolist(), refused.about


def test_adasum_combines_the_changes_of_the_ranks(world):
    """Equal changes count once, changes of different elements are added; momentum stays local."""
    changes = 0.5 + 0.75
    expected = [1 - changes] * 2, [1 - changes] * 2, ("skip_synchronize",)

    assert [expected] * 2 == world.run(adaptive_steps, size=2)


def sparse_gradients(rank, size):
    with initialized() as hvd:
        grads = []
        for densify in (False, True):
            table = nn.Embedding(5, 2, sparse=True)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SparseAdam(table.parameters(), 0.1), sparse_as_dense=densify
            )
            table(torch.tensor([rank, 4])).sum().backward()
            optimizer.step()
            assert table.weight.grad.is_sparse
            grads.append(table.weight.grad.to_dense()[:, 0].tolist())
        return grads


def test_sparse_gradients(world):
    """Averages are the same if gradients are dense on the way, and sparse for the optimizer."""
    assert [[[0.5, 0.5, 0.0, 0.0, 1.0]] * 2] * 2 == world.run(sparse_gradients, size=2)


def many_gradients(rank, size):
    with initialized() as hvd:
        params = [nn.Parameter(torch.ones(16)) for _ in range(1000)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, 0.1))
        communicator = hvd.global_process_set.communicator()
        before = communicator.num_started
        sum(each.sum() * (rank + 1) for each in params).backward()
        fused_begin = time.monotonic()
        optimizer.step()
        fused = time.monotonic() - fused_begin
        assert {1.5} == {each.grad[0].item() for each in params}
        num_fused = communicator.num_started - before
        begin = time.monotonic()
        for each in params:
            hvd.allreduce_(each.grad)
        return num_fused, fused, time.monotonic() - begin


def test_small_gradients_are_fused(world):
    """A thousand small gradients travel as one operation."""
    answers = world.run(many_gradients, size=2, deadline=120)
    print(f"fused and one by one, seconds: {answers}")

    assert [1, 1] == [number for number, *_ in answers]


def batch_norm(rank, size):
    with initialized() as hvd, strict_warnings():
        for shape in ((7, 3), (7, 3, 2, 2)):
            data = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
            weight = torch.randn(shape, generator=torch.Generator().manual_seed(2)).double()
            plain = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(3).double()
            shared = hvd.SyncBatchNorm(3).double()
            shared.load_state_dict(copy.deepcopy(plain.state_dict()))
            whole, mine = data.clone().requires_grad_(), data.clone().requires_grad_()
            rows = slice(0, 3) if rank == 0 else slice(3, 7)
            expected = plain(whole)
            result = shared(mine[rows])
            (expected * weight).sum().backward()
            (result * weight[rows]).sum().backward()
            assert torch.allclose(expected[rows], result)
            assert torch.allclose(whole.grad[rows], mine.grad[rows])
            assert torch.allclose(plain.weight.grad, hvd.allreduce(shared.weight.grad, op=hvd.Sum))
            assert torch.allclose(plain.running_mean, shared.running_mean)
            assert torch.allclose(plain.running_var, shared.running_var)
            assert torch.allclose(plain.eval()(data), shared.eval()(data))


def test_batch_norm_over_all_ranks(world):
    """Statistics, running statistics and gradients are those of the whole batch."""
    world.run(batch_norm, size=2)


def process_sets(rank, size):
    import smdist.dataparallel.torch.horovod as hvd

    even = hvd.ProcessSet([2, 0])
    early = caught(ValueError, even.size)
    with initialized(process_sets=[even]):
        odd = hvd.add_process_set([1, 3])
        assert (1, 2, 0) == (
            even.process_set_id, odd.process_set_id, hvd.global_process_set.process_set_id
        )  # fmt: skip
        mine, other = (even, odd) if rank % 2 == 0 else (odd, even)
        assert mine.included()
        assert not other.included()
        assert (rank // 2, 2, 4) == (mine.rank(), mine.size(), hvd.global_process_set.size())
        tensor = torch.tensor([float(rank)])
        total = hvd.allreduce(tensor, op=hvd.Sum, process_set=mine).item()
        gathered = hvd.allgather(tensor, process_set=mine).tolist()
        root = hvd.broadcast(tensor, mine.ranks[1], process_set=mine).item()
        outside = caught(ValueError, hvd.allreduce, tensor, process_set=other)
        model = nn.Linear(1, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), process_set=mine
        )
        model(tensor[None]).backward()
        optimizer.step()
        gradient = model.weight.grad.item()
        assert hvd.remove_process_set(odd)
        assert not hvd.remove_process_set(odd)
        assert "removed" == caught(ValueError, odd.size).kind
        assert not hvd.remove_process_set(hvd.global_process_set)
        assert odd.process_set_id is None
        again = hvd.add_process_set(odd)
        assert 3 == again.process_set_id
        assert 4 == hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    return early.kind, outside.kind, total, gathered, root, gradient


def test_process_sets(world):
    """Static and dynamic sets, their collectives and optimizers; a set can come back."""
    for rank, answer in enumerate(world.run(process_sets)):
        a, b = rank % 2, rank % 2 + 2
        kinds = ("too_early", "not_included")
        assert (*kinds, float(a + b), [a, b], float(b), (a + b) / 2) == answer


@pytest.mark.parametrize("name", ["check_extension"])
def test_refused_names(name):
    """Names that are missing raise an AttributeError with a replacement."""
    import smdist.dataparallel.torch.horovod as hvd
    from smdist.dataparallel.torch.horovod.refused_names import REFUSED

    with pytest.raises(AttributeError) as caught_error:
        getattr(hvd, name)

    assert REFUSED[name][1] in str(caught_error.value)
