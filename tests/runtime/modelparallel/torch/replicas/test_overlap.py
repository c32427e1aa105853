# SPDX-License-Identifier: Apache-2.0
"""All-reduces of gradients that start during the last backward pass."""

from contextlib import contextmanager
from unittest.mock import patch

import tied
import torch
import torch.distributed as dist
from replicated import Pipeline, Replicated, furthest, plain_step
from torch import nn

from smdist.modelparallel.torch.replicas.gradient_buckets import GradientBuckets
from smdist.modelparallel.torch.replicas.owned_params import OwnedParam

DEPTH = 5


@contextmanager
def counted():
    """Yield a list with one item for each all-reduce that has started."""
    plain, calls = dist.all_reduce, []
    with patch.object(
        dist, "all_reduce", lambda *args, **options: calls.append(1) or plain(*args, **options)
    ):
        yield calls


def started(rank, size):
    """Count the all-reduces that had started when each backward pass ended."""
    torch.set_num_threads(1)
    mine = Replicated(tied.specimen(), Pipeline(num_microbatches=2), size, fusion_bytes=1)
    seen = []

    class Watch(type(mine.replicas)):
        def after_backward(self, stage, is_last):
            seen.append(len(calls))
            super().after_backward(stage, is_last)

    mine.replicas.__class__ = Watch
    with counted() as calls:
        mine.step()
    own = len([p for p in mine.replicas.parameters.values() if p.requires_grad])
    expected = plain_step(tied.specimen(), 4).gradients
    return seen, len(calls), own, furthest(expected, mine.gradients())


def test_all_but_the_last_bucket_start_during_the_last_backward_pass(world):
    """One parameter a bucket; none starts in an earlier backward pass."""
    for seen, in_all, own, (error, name) in world.run(started, hosts="aabb"):
        assert [0, own - 1] == seen
        assert own == in_all
        assert error < 1e-6, name


def chain():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(DEPTH))


def losses(model, rank, kind):
    """The losses of one rank; each has a backward pass of its own."""
    x = torch.full((2, 3), 1.0 + rank)
    layers = list(model)
    if kind == "unused":
        layers = [*layers[2:]] if rank else [layers[0], *layers[2:]]
    for layer in layers:
        x = torch.tanh(layer(x))
    total = x.sum()
    return [0.25 * total, 0.75 * total] if kind == "late" and rank == 1 else [total]


def backward(model, rank, kind):
    *first, last = losses(model, rank, kind)
    for loss in first:
        loss.backward(retain_graph=True)
    last.backward()


def expected(model, rank, size, kind):
    """Means of all ranks' gradients; None for a parameter that no rank uses."""
    backward(model, rank, kind)
    found = []
    for parameter in model.parameters():
        has = torch.tensor(float(parameter.grad is not None))
        mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        dist.all_reduce(has)
        dist.all_reduce(mean)
        found.append(mean / size if has else None)
        parameter.grad = None
    return found


def averaged(rank, size, kind):
    """Two steps: all-reduces before and after the end of the backward pass, and the gradients."""
    model = chain()
    means = expected(model, rank, size, kind)
    owned = [
        OwnedParam(name=name, parameter=each, stages=frozenset({0}))
        for name, each in model.named_parameters()
    ]
    buckets = GradientBuckets(owned, dist.group.WORLD, 1)
    steps = []
    for _ in range(2):
        model.zero_grad()
        with counted() as calls:
            buckets.begin()
            buckets.watch(0)
            backward(model, rank, kind)
            early = len(calls)
            buckets.end(0)
            buckets.finish()
        steps.append((early, len(calls)))
    torch.testing.assert_close(means, [p.grad for p in model.parameters()], rtol=1e-5, atol=1e-7)
    return steps


def test_a_gradient_that_some_replicas_lack_holds_back_the_buckets_after_it(world):
    """Rank 0 alone uses the first layer, nobody the second one: the next step waits for neither."""
    for steps in world.run(averaged, "unused", hosts="aabb"):
        assert [(DEPTH - 2, DEPTH), (DEPTH - 1, DEPTH)] == steps


def test_gradients_that_grow_after_their_bucket_was_sent_are_added(world):
    """Rank 1 has two backward passes, as of reentrant checkpoints; the next step waits for both."""
    first, second = (DEPTH - 1, DEPTH + DEPTH - 1), (0, DEPTH)

    for steps in world.run(averaged, "late", hosts="aabb"):
        assert [first, second] == steps


def test_a_failed_step_leaves_no_hook_although_a_layer_is_frozen_then(world):
    """A hook that is left would send gradients in a pass that is not the last one."""
    assert [0] * 4 == world.run(left_hooks, hosts="aabb")


def left_hooks(rank, size):
    mine = Replicated(tied.specimen(), Pipeline(num_microbatches=2), size, fusion_bytes=1)
    every = list(mine.replicas.parameters.values())
    mine.replicas.begin()
    for stage in mine.stages:
        mine.replicas.before_backward(stage, True)
    every[-1].requires_grad_(False)
    mine.replicas.begin()
    return sum(len(each._post_accumulate_grad_hooks or ()) for each in every)
