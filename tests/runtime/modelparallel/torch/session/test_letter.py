# SPDX-License-Identifier: Apache-2.0
"""Objects as letters: what arrives is what was sent, in as few messages as its size takes."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.session.object_collectives import (
    HEAD_BYTES,
    UnsentError,
    collect,
    pack,
)


def _delivered(obj):
    """The object after a journey of bytes, and how many messages it took."""
    letter = pack(obj)
    pieces = [piece.clone() for piece in letter.pieces]
    queue = iter(pieces[1:])
    arrived = collect(pieces[0], lambda buffer: buffer.copy_(next(queue)))

    assert next(queue, None) is None
    return arrived.read("rank 3"), len(pieces)


@pytest.mark.parametrize(
    ("obj", "messages"),
    [
        (None, 1),
        ({"a": [1, 2.5, "text", b"bytes"]}, 1),
        ("x" * HEAD_BYTES, 2),
        ("x" * (HEAD_BYTES - 40), 1),
        (list(range(10_000)), 2),
    ],
)
def test_plain_objects_take_one_message_or_two(obj, messages):
    """A small one fits in the head, any other in head and rest."""
    assert (obj, messages) == _delivered(obj)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor(True),
        torch.empty(0, 3),
        torch.arange(6, dtype=torch.int64).reshape(2, 3).t(),
        torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.arange(10.0)[::3],
        torch.eye(3).to_sparse(),
        torch.randn(40, 70),
        torch.randn(70, 40).t(),
    ],
    ids=lambda t: f"{t.dtype}-{tuple(t.shape)}",
)
def test_tensors_arrive_as_they_were(tensor):
    """Of every kind: same dtype, shape, layout and numbers."""
    made, _ = _delivered(tensor)

    assert (tensor.dtype, tensor.shape, tensor.layout) == (made.dtype, made.shape, made.layout)
    assert torch.equal(tensor.to_dense(), made.to_dense())


def test_a_large_tensor_is_a_message_of_its_own_and_its_memory_is_not_copied():
    """Head and part; the part is the tensor's memory itself."""
    tensor = torch.randn(100, 100)
    letter = pack({"weights": tensor, "again": tensor})

    assert 2 == len(letter.pieces)
    assert tensor.data_ptr() == letter.pieces[1].data_ptr()


def test_the_same_tensor_arrives_once():
    """Wherever an object holds it, small or large."""
    small, large = torch.ones(2), torch.ones(5000)
    made, messages = _delivered([small, large, {"s": small, "l": large}])

    assert 2 == messages
    assert made[0] is made[2]["s"]
    assert made[1] is made[2]["l"]


def test_what_needs_gradients_does_so_where_it_arrives():
    """Leaves and parameters keep requires_grad; what was computed arrives without its graph."""
    weight = nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    leaf = torch.ones(3, requires_grad=True)
    made, _ = _delivered((weight, frozen, leaf, leaf * 2))

    assert [nn.Parameter, nn.Parameter, torch.Tensor, torch.Tensor] == [type(m) for m in made]
    assert [True, False, True, False] == [m.requires_grad for m in made]
    assert [None] * 4 == [m.grad_fn for m in made]


def test_what_arrived_can_be_written_to():
    """It is the receiver's own memory, small or large."""
    (small, large), _ = _delivered((torch.zeros(2), torch.zeros(5000)))
    small += 1
    large += 1

    assert 5002 == small.sum() + large.sum()


def test_a_module_arrives_with_its_values():
    """Whatever pickles travels."""
    layer = nn.Linear(60, 60)
    made, messages = _delivered(layer)

    assert torch.equal(layer.weight, made.weight)
    assert 2 < messages + 1


def test_what_does_not_pickle_says_so_to_its_receiver():
    """The sender has the error in hand; the receiver learns who could not send, and why."""
    letter = pack(lambda: None)

    assert letter.failure is not None
    with pytest.raises(UnsentError) as caught:
        collect(letter.head, lambda buffer: None).read("rank 3")

    assert ("rank 3", "not_picklable") == (caught.value.sender, caught.value.kind)
    assert f"{type(letter.failure).__name__}: {letter.failure}" == caught.value.why
