# SPDX-License-Identifier: Apache-2.0
"""What one rank cannot do, all ranks learn at once; the one that failed stays alive."""

import time

import pytest
import torch
from smp_nets import batch, failure, loss_of, net, outcome, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.parallel import first_step as cutting


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
        found = failure(run, model, *((None, None) if is_bad and place == "size" else (x, y)))
    finally:
        cutting.materialize = kept
    return found, time.monotonic() - began


OWN = {  # type and kind of the error on the rank that fails
    "interrupt": ("KeyboardInterrupt", ""),
    "size": ("OptionError", "no_tensor"),
    "capture": ("CaptureError", "failed"),
}
OTHERS = {"cut": ("StepError", "step"), "hook": ("StepError", "step")}  # fields on the other rank


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("place", ["user", "interrupt", "size", "capture", "cut", "hook"])
def test_a_fault_of_one_rank_in_the_first_step_is_told_to_all(world, place, bad):
    per_rank = world.run(first_step, place, bad, size=2, deadline=30)

    for rank, (found, seconds) in enumerate(per_rank):
        if rank == bad or (place, bad) == ("capture", 0):
            assert OWN.get(place, ("RuntimeError", "")) == (found.type, found.kind)
        else:
            assert OTHERS.get(place, ("DisagreementError", "failed")) == (found.type, found.kind)
            assert bad == found.rank
            assert place in OWN or "RuntimeError: bad weather" == found.why
        assert seconds < 10


class Sized(nn.Module):
    """Layers of some widths, and one more on request."""

    def __init__(self, width, has_more):
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)
        self.more = nn.Linear(8, 8) if has_more else None

    def forward(self, x):
        x = self.down(self.up(x).relu())
        return {"logits": x if self.more is None else self.more(x)}


def unlike(rank, size, width, has_more):
    start(2, microbatches=2)
    is_bad = rank == 1
    model = smp.DistributedModel(Sized(width if is_bad else 16, is_bad and has_more))
    return failure(train_step, model, *batch())


@pytest.mark.parametrize(
    ("width", "has_more", "why"),
    [
        (16, True, "it has 'more', which rank 0 lacks"),
        (24, False, "'up' has 216 parameter elements, on rank 0 144, "
                    "'down' has 200 parameter elements, on rank 0 136"),
    ],
)  # fmt: skip
def test_a_rank_with_another_model_names_the_modules_that_differ(world, width, has_more, why):
    """No plan was passed, so none is at fault."""
    first, second = world.run(unlike, width, has_more, size=2, deadline=30)

    assert ("OptionError", ("model",), "difference") == (second.type, second.about, second.kind)
    assert why == second.why
    assert ("DisagreementError", "failed", 1) == (first.type, first.kind, first.rank)
    assert why in first.why


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

    return failure(run, model, x, y), train_step(model, x, y).reduce_mean().item()


def test_an_interrupt_before_the_models_call_is_told_and_the_next_step_runs(world):
    (first, _), (second, _) = world.run(interrupted, size=2, deadline=30)

    assert "KeyboardInterrupt" == first.type
    assert ("DisagreementError", "failed", 0) == (second.type, second.kind, second.rank)
    assert "KeyboardInterrupt" == second.why


def uneven(rank, size, degree):
    """The last replica has a batch that cannot be cut; after it all go on."""
    start(degree, microbatches=2)
    model = smp.DistributedModel(net())
    x, y = batch()
    rows = 7 if smp.dp_rank() == 1 else 8
    before = train_step(model, x, y).reduce_mean().item()
    began = time.monotonic()
    found = failure(train_step, model, x[:rows], y[:rows])
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
        if rank >= size - degree:
            assert {("x",), ("y",)} == {about for about, _ in found.faults}
        else:
            assert ("DisagreementError", "failed") == (found.type, found.kind)
            assert size - degree == found.rank
        assert seconds < 10
        assert goes_on
        assert (alone is None) == (rank >= size - degree)


def hooked(rank, size):
    """A hook fails in a world of one, where nothing else is to be ended."""
    start(1, microbatches=2)
    model, ran = smp.DistributedModel(net()), []
    model.register_post_partition_hook(lambda *_: _failing())
    model.register_post_partition_hook(lambda *_: ran.append(1))
    return [failure(train_step, model, *batch()) for _ in range(2)], ran


def test_no_step_runs_while_something_that_waited_for_the_cut_has_not_run(world):
    (((first, second), ran),) = world.run(hooked, size=1)

    assert "RuntimeError" == first.type
    assert ("OptionError", "not_ready") == (second.type, second.kind)
    assert [] == ran


def sized(rank, size):
    """Eight samples on each of two replicas: as said, fewer later, more, and not as said."""
    start(1, microbatches=2, global_batch_size=16)
    model = smp.DistributedModel(net())
    kinds = [outcome(train_step, model, *batch(rows))[0] for rows in (4, 8, 4)]
    found = failure(train_step, model, *batch(12))
    return kinds, found.about, outcome(train_step, model, *batch(12))[1]


def test_batches_are_as_large_together_as_was_said(world):
    for kinds, about, text in world.run(sized, size=2):
        assert ["OptionError", "ok", "ok"] == kinds
        assert ("global_batch_size",) == about
        assert (
            "global_batch_size is 16: the batch of this step has 12 samples on each of 2 replicas,"
            " which is 24 in total. Pass global_batch_size=24, or batches of 8." == text
        )
