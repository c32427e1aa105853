# SPDX-License-Identifier: Apache-2.0
"""Order in which a rank needs its layers, and reuse of pinned buffers; no device is needed."""

import pytest
import torch

from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.offload.host_buffers import HostBuffers
from smdist.modelparallel.torch.executor.offload.layer_order import LayerOrder
from smdist.modelparallel.torch.executor.offload.saved_tensors import content, extent


def order_after(actions, *complete, layers=3):
    """Return the order in which some forward passes have ended, with some layers each."""
    order = LayerOrder(actions)
    for action in complete:
        for number in range(layers):
            order.found((action.stage, action.microbatch, number))
        order.complete(action.stage, action.microbatch)
    return order


F0, F1 = (Action(Do.F, 0, number) for number in range(2))
B0, B1 = (Action(Do.B, 0, number) for number in range(2))


def test_a_backward_pass_needs_layers_in_reverse_and_then_those_of_the_next():
    order = order_after([F0, F1, B0, B1], F0, F1)

    assert [(0, 0, 1), (0, 0, 0), (0, 1, 2), (0, 1, 1)] == order.following(2, 1, 4)
    assert [(0, 1, 0)] == order.following(3, 2, 4)


def test_a_forward_pass_looks_past_its_end_once_the_number_of_layers_is_known():
    """The first one may have any number of layers."""
    order = order_after([F0, B0, F1, B1])
    order.found((0, 0, 0))

    assert [(0, 0, 0)] == order.following(0, 0, 9)
    order = order_after([F0, F1, B0, B1], F0)
    order.found((0, 1, 0))
    order.found((0, 1, 1))
    assert [(0, 1, 1), (0, 1, 2), (0, 0, 2), (0, 0, 1)] == order.following(1, 1, 4)


def test_what_was_saved_last_is_needed_first():
    """So it need not leave the device."""
    order = order_after([F0, B0, F1, B1], F0)
    for number in range(3):
        order.found((0, 1, number))

    assert [(0, 1, 2), (0, 1, 2), (0, 1, 1)] == order.following(2, 2, 3)


def test_the_second_half_of_a_backward_pass_needs_the_same_layers():
    schedule = make_schedule("zero_bubble", num_ranks=2, num_microbatches=2)
    actions = schedule.orders[0]
    order = order_after(actions, *(each for each in actions if each.do is Do.F), layers=2)
    later = next(at for at, each in enumerate(actions) if each.do is Do.W)
    microbatch = actions[later].microbatch

    assert [(0, microbatch, 1), (0, microbatch, 0)] == order.following(later, 0, 2)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda x: x, (0, 8000)),
        (lambda x: x.t(), (0, 8000)),
        (lambda x: x[:, :10], (0, 8000)),  # nearly all of the storage
        (lambda x: x[20:60], (1536, 4800)),  # 1,600 bytes are not aligned
        (lambda x: x[:40], (0, 3200)),
        (lambda x: x[0].expand(9, 20), (0, 80)),
    ],
)
def test_a_part_of_a_large_storage_is_copied_alone(view, expected):
    """Bytes of a matrix of 100 rows, 80 bytes each."""
    x = torch.arange(2000, dtype=torch.float32).view(100, 20)
    part = view(x)

    assert expected == extent(part)
    found = content(part, *expected)
    offset = part.storage_offset() - expected[0] // 4
    again = torch.empty(0).set_(found.clone().untyped_storage(), offset, part.shape, part.stride())
    assert torch.equal(part, again)


def test_buffers_are_used_again_and_freed_when_nobody_needs_them(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory, **names: empty(*args, **names))
    buffers = HostBuffers()
    first = buffers.take(100_000)
    buffers.give(first)

    assert first is buffers.take(99_000)
    assert first.memory.nbytes < 100_000 * 9 / 8
    buffers.give(first)
    buffers.trim()
    assert first.memory.nbytes == buffers.free_bytes
    buffers.trim()
    assert (0, 1) == (buffers.free_bytes, buffers.allocations)
