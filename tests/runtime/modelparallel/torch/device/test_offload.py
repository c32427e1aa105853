# SPDX-License-Identifier: Apache-2.0
"""Activations in the host's memory: the same gradients to the bit, and little on the device."""

import sys
import weakref
from dataclasses import replace
from pathlib import Path

import accelerator
import device_training
import offloading
import pytest
import test_device
import torch
from device_training import Training
from offloading import ACTIVATION_BYTES, differing, loss_of
from splitting import Pipeline
from torch import nn

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.executor import StepError
from smdist.modelparallel.torch.executor.offload import activation_offload, step_offload
from smdist.modelparallel.torch.executor.offload.device_copies import DeviceCopies
from smdist.modelparallel.torch.executor.offload.saved_storage import SavedStorage
from smdist.modelparallel.torch.executor.offload.step_offload import StepOffload

SLOTS = {"staging_slot_bytes": 1 << 18, "staging_slots": 3}
LAYERS = 16
ALONE = Pipeline(schedule="simple", num_ranks=1, num_microbatches=2)
PIPELINES = {
    "1f1b": Pipeline(num_microbatches=3),
    "interleaved": Pipeline(schedule="interleaved_1f1b", virtual_stages=2, num_microbatches=4),
    "zero_bubble": Pipeline(schedule="zero_bubble", num_microbatches=3),
    "zero_bubble_v": Pipeline(schedule="zero_bubble_v", virtual_stages=2, num_microbatches=4),
}


class CountedOffload(StepOffload):
    """Step that counts how many layers are on the device at once."""

    most = 0

    def _arrange(self):
        super()._arrange()
        CountedOffload.most = max(CountedOffload.most, self.present_layers)


def steps_with_and_without(rank, size, horizons, checkpointed):
    """Run two steps of each pipeline without offload, and with each of its horizons."""
    accelerator.set_seed(rank)
    activation_offload.StepOffload = CountedOffload
    found = []
    for name, of_name in horizons.items():

        def made(horizon, pipeline=PIPELINES[name]):
            model = offloading.blocks(8, is_checkpointed=checkpointed)
            return offloading.split(model, pipeline, horizon)

        plain, plain_bytes = _measured(made(None))
        for horizon in of_name:
            CountedOffload.most = 0
            offloaded, num_bytes = _measured(made(horizon))
            share = num_bytes / plain_bytes
            found.append((name, horizon, differing(plain, offloaded), CountedOffload.most, share))
    torch.accelerator.synchronize()
    return found, accelerator.take_stale_uses()


def _measured(split):
    """Run two steps; return the second one, and the most bytes that it had on the device."""
    split.step(loss=loss_of)
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    ran = split.step(loss=loss_of)
    torch.accelerator.synchronize()
    return ran, torch.accelerator.max_memory_allocated() - before


@pytest.mark.parametrize(
    ("horizons", "checkpointed"),
    [
        ({"1f1b": (1, 4), "interleaved": (4,), "zero_bubble": (1,), "zero_bubble_v": (3,)}, False),
        ({"1f1b": (2,), "zero_bubble": (1,)}, True),
    ],
)
def test_pipelines_have_the_same_gradients_to_the_bit(pipelines, horizons, checkpointed):
    """And no more layers are on the device than the horizon says."""
    answers = pipelines.run_ranks(
        steps_with_and_without, horizons, checkpointed, size=2, staging=SLOTS, deadline=150
    )
    for found, stale in answers:
        assert stale == accelerator.NEVER
        for name, horizon, differs, most, share in found:
            assert [] == differs, (name, horizon)
            assert 1 <= most <= horizon, (name, horizon)
            assert share < 1 or horizon > 2, (name, horizon)
            if name == "1f1b" and horizon == 1:
                assert share < 0.5, share


def peaks(rank, size):
    """Return the most bytes that a step needs on the device, by horizon, and of pinned memory."""
    found = {}
    for horizon in (None, 1, 4):
        split = offloading.split(offloading.chain(LAYERS), ALONE, horizon)
        split.step(loss=loss_of)
        pinned = _pinned_allocations(split)
        torch.accelerator.synchronize()
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        split.executor.run(split.feed(loss_of), draws=split.draws, backward=True)
        torch.accelerator.synchronize()
        found[horizon] = torch.accelerator.max_memory_allocated() - before
        assert pinned == _pinned_allocations(split)  # each step uses the same buffers
    return {horizon: most / ACTIVATION_BYTES for horizon, most in found.items()}


def _pinned_allocations(split):
    offload = split.executor._offload
    return None if offload is None else offload.copies.buffers.allocations


def test_the_horizon_bounds_the_memory(pipelines):
    """In activations of 64 KiB; a layer saves one, two microbatches are under way."""
    ((found,),) = [pipelines.run_ranks(peaks, size=1, staging=SLOTS, deadline=150)]
    at_work = 6  # input, result, gradients and their temporaries

    assert 2 * LAYERS <= found[None]
    assert found[1] <= 1 + at_work
    assert found[4] <= 4 + at_work
    assert found[1] < found[4]


class Twice(nn.Module):
    """Layer that reads what it has saved in the forward pass already, and again in the backward."""

    def __init__(self):
        super().__init__()
        self.inner = offloading.Block()

    def forward(self, x):
        x = self.inner(x)
        with torch.enable_grad():
            entry = x.detach().requires_grad_()
            result = (entry.exp() * entry).tanh()
            (slope,) = torch.autograd.grad(result.sum(), entry, retain_graph=True)
            (again,) = torch.autograd.grad(result.sum(), entry)
        return x * slope + again


class InPlace(nn.Module):
    """Layer that changes what an operation has saved."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def forward(self, x):
        saved = x * 2 if self.at == "moved" else x[:8] * 2
        result = saved.exp() if self.at == "result" else saved.square()
        (result if self.at == "result" else saved).add_(1)
        return x + result.sum()


class Failing(nn.Module):
    """Layer whose backward pass fails, once, when so many more microbatches have come."""

    remaining = 0

    def forward(self, x):
        def fail(gradient):
            Failing.remaining -= 1
            if Failing.remaining == 0:
                raise ValueError("2 plus 2 is 5")

        x = x * 1
        x.register_hook(fail)
        return x


def _around(layer):
    layers = [offloading.blocks(2), layer.to(accelerator.NAME), offloading.blocks(2)]
    return nn.Sequential(*layers)


def read_twice(rank, size):
    """Return what differs if saved tensors are read more than once."""
    torch.manual_seed(0)
    layer = Twice().state_dict()

    def made(horizon):
        model = Twice()
        model.load_state_dict(layer)
        return offloading.split(_around(model), ALONE, horizon)

    plain = made(None).step(loss=loss_of)
    return [differing(plain, made(horizon).step(loss=loss_of)) for horizon in (1, 4)]


def test_tensors_may_be_read_twice(pipelines):
    assert [[[], []]] == pipelines.run_ranks(read_twice, size=1, staging=SLOTS, deadline=150)


def changes(rank, size):
    """Return the errors of steps that change saved tensors, without offload and with it."""
    return {
        (at, horizon): _why(offloading.split(_around(InPlace(at)), ALONE, horizon))
        for at in ("moved", "small", "result")
        for horizon in (None, 2)
    }


def _why(split):
    with pytest.raises(StepError) as raised:
        split.step(loss=loss_of)
    return raised.value.fault.why


def test_a_saved_tensor_that_changes_is_the_same_error(pipelines):
    (found,) = pipelines.run_ranks(changes, size=1, staging=SLOTS, deadline=150)
    for (at, horizon), why in found.items():
        assert "has been modified by an inplace operation" in why, (at, horizon)
        assert "is at version 1; expected version 0 instead" in why, (at, horizon)


def failed_step(rank, size):
    """Fail in a backward pass; return what is left, and whether the next step is right."""
    plain = offloading.split(_around(nn.Identity()), ALONE, None).step(loss=loss_of)
    split = offloading.split(_around(Failing()), ALONE, 2)
    split.step(loss=loss_of)
    Failing.remaining = 2
    buffers = split.executor._offload.copies.buffers
    storages = weakref.WeakSet()
    made = SavedStorage.__init__

    def init(self, *args):
        made(self, *args)
        storages.add(self)

    SavedStorage.__init__ = init
    with pytest.raises(StepError) as raised:
        split.step(loss=loss_of)
    torch.accelerator.synchronize()
    left = sum(each.device_bytes for each in storages)
    free, allocations = buffers.free_bytes, buffers.allocations
    for stage in split.stages.values():
        stage.zero_grad(set_to_none=True)
    after = split.step(loss=loss_of)
    is_same = buffers.allocations == allocations
    return raised.value.fault.why, left, free, is_same, differing(plain, after)


def test_a_failed_step_leaves_nothing(pipelines):
    """While its error lives, with the graph of the step in its traceback."""
    ((why, left, free, is_same, differs),) = pipelines.run_ranks(
        failed_step, size=1, staging=SLOTS, deadline=150
    )
    assert "2 plus 2 is 5" in why
    assert (0, True, []) == (left, is_same, differs)
    assert free > 0


SAVE = "self._to_host.wait_event(home.record_event())"
LOAD = "self._to_device.wait_event(home.record_event())"
BUGS = {  # class, line, and what is there in its place
    "a copy to the host does not wait for the result": (DeviceCopies, SAVE, "pass"),
    "a copy to the device does not wait for users of its target": (DeviceCopies, LOAD, "pass"),
    "a loaded tensor is used before it has come": (SavedStorage, "here.wait_event(loaded)", "pass"),
    "memory is freed before its copy has ended": (
        SavedStorage,
        "self._home.wait_event(copied)",
        "pass",
    ),
}


def plant(bug):
    """Replace a line of a class."""
    kind, before, after = BUGS[bug]
    module = sys.modules[kind.__module__]
    text = Path(module.__file__).read_text()
    assert 1 == text.count(before), bug
    space = dict(vars(module))
    exec(compile(text.replace(before, after), module.__file__, "exec"), space)
    for name, value in vars(space[kind.__name__]).items():
        if callable(value):
            setattr(kind, name, value)


def with_bug(rank, size, bug, seeds):
    """Return the seeds of the random schedules in which a planted bug shows."""
    test_device.set_copy_bandwidth(2e8)  # slower than the device computes
    test_device.set_max_delay(0.2)
    plain = offloading.split(offloading.blocks(4), ALONE, None).step(loss=loss_of)
    if bug:
        plant(bug)
    split = offloading.split(offloading.blocks(4), ALONE, 2)
    shown = []
    for seed in seeds:
        accelerator.set_seed(seed)
        found = [split.step(loss=loss_of) for _ in range(2)]
        torch.accelerator.synchronize()
        is_stale = accelerator.take_stale_uses() != accelerator.NEVER
        if is_stale or any(differing(plain, each) for each in found):
            shown.append(seed)
        if shown and bug:
            break
    return shown


@accelerator.on_the_test_device("a GPU has an order of its own")
@pytest.mark.parametrize("bug", ["", *BUGS])
def test_random_schedules_show_a_missing_wait(pipelines, bug):
    seeds = range(20) if bug else range(3)
    (shown,) = pipelines.run_ranks(with_bug, bug, seeds, size=1, staging=SLOTS, deadline=150)

    assert bool(bug) == bool(shown), (bug, shown)


def trainings(rank, size, *given):
    """Train without offload and with it, where even the smallest tensors move."""
    step_offload.LEAST_BYTES = 1
    found = []
    for training in given:
        keys = {"offload_activations": True, "activation_loading_horizon": 3}
        moving = replace(training, options={**training.options, **keys})
        both = []
        for each in (training, moving):
            both.append(device_training.split(rank, size, each))
            smp.session.end()
        (losses, weights), (moved_losses, moved_weights) = both
        differs = [name for name, each in weights.items() if not moved_weights[name].equal(each)]
        found.append((losses == moved_losses, differs))
    torch.accelerator.synchronize()
    return found, accelerator.take_stale_uses()


def test_dropout_autocast_tied_weights_and_shards(pipelines):
    """A step of AdamW has the same bits."""
    low = Training(degree=2, autocast=True, scaled=True, steps=range(1))
    sharding = {"sharding": "full"}
    sharded = Training(degree=1, created_on="cpu", options=sharding, steps=range(1))
    answers = pipelines.run_ranks(trainings, low, sharded, size=2, staging=SLOTS, deadline=150)
    for found, stale in answers:
        assert [(True, []), (True, [])] == found
        assert stale == accelerator.NEVER


@smp.step
def train_step(model, x):
    loss = loss_of(model(x))
    model.backward(loss)
    return loss


def trained_by_smp(rank, size, offload):
    """Run two steps of a script of SMP v1; return loss, gradients, and bytes on the host."""
    torch.accelerator.set_device_index(0)
    plain = {"pipeline_parallel_degree": size, "microbatches": 2, "ddp": True}
    smp.init({**plain, **offload})
    model = smp.DistributedModel(offloading.blocks(4), trace_device="cpu")
    smp.set_activation_checkpointing(model.module[2])
    for _ in range(2):
        model.zero_grad()
        loss = train_step(model, offloading.batch(2)).reduce_mean().item()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    used = model._state.split.offload
    moved = None if used is None else used.copies.buffers.free_bytes
    smp.session.end()
    return loss, gradients, moved


def both_ways(rank, size):
    """Train with SMP's keys, and without them."""
    keys = {"offload_activations": True, "activation_loading_horizon": 2}
    return trained_by_smp(rank, size, {}), trained_by_smp(rank, size, keys)


def test_a_script_of_smp_moves_its_activations(pipelines):
    for plain, offloaded in pipelines.run_ranks(both_ways, size=2, staging=SLOTS, deadline=150):
        assert plain[0] == offloaded[0]
        assert plain[1].keys() == offloaded[1].keys()
        assert all(torch.equal(each, offloaded[1][name]) for name, each in plain[1].items())
        assert plain[2] is None
        assert offloaded[2] >= 4 * ACTIVATION_BYTES
