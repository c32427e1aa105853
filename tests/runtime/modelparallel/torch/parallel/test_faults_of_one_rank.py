# SPDX-License-Identifier: Apache-2.0
"""What one rank cannot do, all ranks learn at once; the one that failed stays alive."""

import time

import pytest
import torch
from smp_nets import batch, loss_of, net, outcome, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.parallel import first_step as cutting


def told(function, *args):
    """As outcome, of an interrupt as well."""
    try:
        return outcome(function, *args)
    except KeyboardInterrupt as error:
        return type(error).__name__, str(error)


class Picky(nn.Module):
    """Cannot be taken apart on one rank."""

    def __init__(self, is_bad):
        super().__init__()
        self.net, self.is_bad = net(), is_bad

    def forward(self, x):
        if self.is_bad:
            raise RuntimeError("bad weather")
        return self.net(x)


def _failing(*_, **__):
    raise RuntimeError("bad weather")


def _hook(is_bad):
    def hook(model, optimizer):
        if is_bad:
            _failing()

    return hook


def first_step(rank, size, place, bad):
    """The first step with a fault at one place on one rank, which answers like the others."""
    start(size, microbatches=2)
    is_bad, kept = rank == bad, cutting.materialize
    model = smp.DistributedModel(Picky(is_bad and place == "capture"))
    x, y = batch()

    @smp.step
    def run(model, x, y):
        if is_bad and place == "user":
            _failing()
        if is_bad and place == "interrupt":
            raise KeyboardInterrupt
        return loss_of(model, x, y)

    if place == "hook":
        model.register_post_partition_hook(_hook(is_bad))
    if is_bad and place == "cut":
        cutting.materialize = _failing
    began = time.monotonic()
    try:
        found = told(run, model, *((None, None) if is_bad and place == "size" else (x, y)))
    finally:
        cutting.materialize = kept
    return *found, time.monotonic() - began


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("place", ["user", "interrupt", "size", "capture", "cut", "hook"])
def test_a_fault_of_one_rank_in_the_first_step_is_told_to_all(world, place, bad):
    per_rank = world.run(first_step, place, bad, size=2, deadline=30)

    word = {"interrupt": "KeyboardInterrupt", "size": "no tensor to split"}.get(
        place, "bad weather"
    )
    for rank, (kind, text, seconds) in enumerate(per_rank):
        assert "ok" != kind
        assert word in f"{kind}: {text}"
        assert rank == bad or f"rank {bad}" in text or (place == "capture" and bad == 0)
        assert seconds < 10


def interrupted(rank, size):
    start(size)
    model = smp.DistributedModel(net())
    x, y = batch()
    train_step(model, x, y)

    @smp.step
    def run(model, x, y):
        if rank == 0:
            raise KeyboardInterrupt
        return loss_of(model, x, y)

    return told(run, model, x, y), train_step(model, x, y).reduce_mean().item()


def test_an_interrupt_before_the_models_call_is_told_and_the_next_step_runs(world):
    (first, _), (second, _) = world.run(interrupted, size=2, deadline=30)

    assert "KeyboardInterrupt" == first[0]
    assert "rank 0 failed" in second[1]
    assert "KeyboardInterrupt" in second[1]


def uneven(rank, size, degree):
    """The last replica has a batch that cannot be cut; after it all go on."""
    start(degree, microbatches=2)
    model = smp.DistributedModel(net())
    x, y = batch()
    rows = 7 if smp.dp_rank() == 1 else 8
    before = train_step(model, x, y).reduce_mean().item()
    began = time.monotonic()
    found = outcome(train_step, model, x[:rows], y[:rows])
    seconds = time.monotonic() - began
    with torch.no_grad():
        alone = train_evaluate(model, x) if smp.dp_rank() == 0 else None
    return found, seconds, before == train_step(model, x, y).reduce_mean().item(), alone


def train_evaluate(model, x):
    """One replica alone."""
    return model.evaluate((x,), lambda output: output["logits"].square().mean()).item()


@pytest.mark.parametrize(("size", "degree"), [(2, 1), (4, 2)])
def test_a_batch_of_one_replica_that_cannot_be_cut_stops_the_step_of_all(world, size, degree):
    """A step that only evaluates asks the one pipeline."""
    for rank, (found, seconds, goes_on, alone) in enumerate(
        world.run(uneven, degree, size=size, deadline=40)
    ):
        assert "'x' has 7 samples" in found[1]
        assert rank >= size - degree or f"rank {size - degree} failed" in found[1]
        assert seconds < 10
        assert goes_on
        assert (alone is None) == (rank >= size - degree)


def hooked(rank, size):
    """A hook fails in a world of one, where nothing else is to be ended."""
    start(1, microbatches=2)
    model, ran = smp.DistributedModel(net()), []
    model.register_post_partition_hook(lambda *_: _failing())
    model.register_post_partition_hook(lambda *_: ran.append(1))
    return [outcome(train_step, model, *batch()) for _ in range(2)], ran


def test_no_step_runs_while_something_that_waited_for_the_cut_has_not_run(world):
    (((first, second), ran),) = world.run(hooked, size=1)

    assert ("RuntimeError", "bad weather") == first
    assert "OptionError" == second[0]
    assert "2 of the functions that run after its cut" in second[1]
    assert [] == ran


def sized(rank, size):
    """Eight samples on each of two replicas: as said, fewer later, more, and not as said."""
    start(1, microbatches=2, global_batch_size=16)
    model = smp.DistributedModel(net())
    kinds = [outcome(train_step, model, *batch(rows))[0] for rows in (4, 8, 4)]
    return kinds, outcome(train_step, model, *batch(12))[1]


def test_batches_are_as_large_together_as_was_said(world):
    for kinds, text in world.run(sized, size=2):
        assert ["OptionError", "ok", "ok"] == kinds
        assert "global_batch_size is 16" in text
        assert "12 samples on each of 2 replicas, which is 24 in total" in text
        assert "global_batch_size=24, or batches of 8" in text
