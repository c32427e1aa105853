# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in the host's memory: the same bits, and none of it on the device."""

import accelerator
import optimizer_offloading as offloading
import pytest
import torch
from error_fields import fields_raised
from optimizer_offloading import STEPS, batch, differing, train

import smdist.modelparallel.torch as smp

SLOTS = {"staging_slot_bytes": 1 << 16, "staging_slots": 3}
HOST = {"offload_optimizer": True}
CLIPPED = {"gradient_clipping": 0.01}
ALONE = {"pipeline_parallel_degree": 1}
STAGES = {"pipeline_parallel_degree": 2}
LAYOUTS = {
    "fp16 stages": {**STAGES, "fp16": True, **CLIPPED},
    "full shards": {**ALONE, "sharding": "full", **CLIPPED},
}
MORE_LAYOUTS = {
    "tensors": {**ALONE, "tensor_parallel_degree": 2, **CLIPPED},
    "stages": {**STAGES, **CLIPPED},
    "optimizer shards": {**ALONE, "sharding": "optimizer"},
    "fp16 shards": {**ALONE, "fp16": True, "sharding": "full", **CLIPPED},
    "fp16 tensors": {**ALONE, "fp16": True, "tensor_parallel_degree": 2, **CLIPPED},
    "bf16 stages": {**STAGES, "bf16": True},
    "activations": {**STAGES, "offload_activations": True},
}
every_layout = pytest.mark.parametrize(
    "options",
    [
        *(pytest.param(each, id=name) for name, each in LAYOUTS.items()),
        *(pytest.param(x, id=name, marks=pytest.mark.slow) for name, x in MORE_LAYOUTS.items()),
    ],
)


def both(rank, size, options):
    """Train without offload and with it."""
    torch.accelerator.set_device_index(0)
    found = train(options), train({**options, **HOST})
    torch.accelerator.synchronize()
    return *found, accelerator.take_stale_uses()


@every_layout
def test_state_is_on_the_host_and_results_have_the_same_bits(pipelines, options):
    """With fp16, the first step overflows, so that the loss scale is in use."""
    device, is_scaled = accelerator.NAME, "fp16" in options
    answers = pipelines.run_ranks(both, options, size=2, staging=SLOTS, deadline=150)
    for plain, offloaded, stale in answers:
        assert accelerator.NEVER == stale
        assert plain.losses == offloaded.losses
        assert [] == differing(plain, offloaded)
        assert [is_scaled, False, False] == plain.skipped == offloaded.skipped
        assert plain.scale == offloaded.scale
        assert ({device}, {device}, {device}) == plain.places
        assert ({device}, {device}, {"cpu"}) == offloaded.places
        assert plain.state_bytes == offloaded.state_bytes
        # Bytes of an element on the device: 16 without offload, 20 in 16 bits without shards.
        is_half = "sharding" not in options and (is_scaled or "bf16" in options)
        assert plain.planned_bytes == offloaded.planned_bytes * (5 if is_half else 2)
        # PyTorch's blocks on the device are multiples of 512 bytes
        assert plain.state_bytes <= plain.device_bytes - offloaded.device_bytes
        assert offloaded.pinned_bytes <= offloaded.state_bytes


def resumed(rank, size, options, folder):
    """Train without a break; then save without offload and resume with it, and the reverse."""
    torch.accelerator.set_device_index(0)
    known, last = train(options), STEPS - 1
    found = []
    for number, (first, second) in enumerate([({}, HOST), (HOST, {})]):
        place = f"{folder}/{number}"
        train({**options, **first}, steps=range(last), saved_to=place)
        after = train({**options, **second}, steps=[last], resumed_from=place)
        same = known.losses[last:] == after.losses and known.scale == after.scale
        found.append((same, differing(known, after), after.places[2]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [*LAYOUTS.values(), MORE_LAYOUTS["fp16 tensors"]], ids=[*LAYOUTS, "fp16 tensors"]
)
def test_a_checkpoint_is_for_both(pipelines, options, tmp_path):
    answers = pipelines.run_ranks(
        resumed, options, str(tmp_path), size=2, staging=SLOTS, deadline=150
    )
    for found in answers:
        assert [(True, [], {"cpu"}), (True, [], {accelerator.NAME})] == found


def optimizers(rank, size):
    """Train with optimizers whose state differs, without offload and with it."""
    kinds = {
        torch.optim.SGD: {"momentum": 0.9, "nesterov": True},
        torch.optim.Adagrad: {},  # makes its state at once, on the device
        torch.optim.AdamW: {"fused": True},
        torch.optim.NAdam: {"foreach": True},
    }
    found = {}
    for kind, more in kinds.items():
        made_by = {"kind": kind, **more}
        offloaded = train({**ALONE, **HOST}, made_by=made_by)
        if more.get("fused"):  # the test device has no fused kernels
            made_by = {"kind": kind}
        plain = train(ALONE, made_by=made_by)
        far = max((x - offloaded.weights[n]).abs().max().item() for n, x in plain.weights.items())
        found[kind.__name__] = (far, offloaded.places[2])
    return found


def test_optimizers_of_pytorch(pipelines):
    """Fused and foreach implementations run on the CPU, too, and round in another way."""
    (found,) = pipelines.run_ranks(optimizers, size=1, staging=SLOTS, deadline=150)

    assert {"SGD", "Adagrad", "AdamW", "NAdam"} == set(found)
    assert {("cpu",)} == {tuple(places) for _, places in found.values()}
    assert 0 == found["SGD"][0] == found["Adagrad"][0]
    assert 1e-5 > found["AdamW"][0]
    assert 1e-5 > found["NAdam"][0]


def state_dicts(rank, size):
    """Load whole, local and moved state; return places of the state, and the last weights."""
    offloading.start(**STAGES, **HOST)
    model, optimizer = offloading.made()
    offloading.run(model, *batch(0))
    optimizer.step()
    places = []
    for state in (optimizer.state_dict(), optimizer.local_state_dict()):
        optimizer.load_state_dict(state)
        places.append(_places(optimizer))
    with torch.no_grad():  # the host has no copy of its own that would be stale
        for parameter in model.parameters():
            parameter.zero_()
    optimizer.zero_grad()
    optimizer.step()  # without gradients, nothing changes
    ends = {float(each.abs().max()) for each in model.parameters()}
    is_own = all(each.device.type == accelerator.NAME for each in optimizer.state)
    smp.session.end()
    return places, ends, is_own


def _places(optimizer):
    state = [each for of in optimizer.state.values() for key, each in of.items() if key != "step"]
    return {each.device.type for each in state}


def test_loaded_state_is_on_the_host_at_once(pipelines):
    for places, ends, is_own in pipelines.run_ranks(state_dicts, size=2, staging=SLOTS):
        assert [{"cpu"}, {"cpu"}] == places
        assert {0.0} == ends
        assert is_own


def refusals(rank, size):
    """Return the errors of a bare optimizer, and of one whose step a CUDA graph would capture."""
    offloading.start(**ALONE, **HOST)
    model, optimizer = offloading.made()
    bare = torch.optim.SGD(model.parameters(), lr=0.1)
    offloading.run(model, *batch(0))
    before = [each.detach().clone() for each in model.parameters()]
    found = [fields_raised(bare.step)]
    optimizer.param_groups[0]["capturable"] = True
    found.append(fields_raised(optimizer.step))
    same = all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    smp.session.end()
    return found, same


def test_what_cannot_run_on_the_host_is_refused(pipelines):
    ((found, same),) = pipelines.run_ranks(refusals, size=1, staging=SLOTS)

    assert [[("optimizer", "not_wrapped")], [("optimizer.capturable", "conflict")]] == found
    assert same
