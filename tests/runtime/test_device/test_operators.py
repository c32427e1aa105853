# SPDX-License-Identifier: Apache-2.0
"""Operators of the test device: those of the CPU, later."""

import copy
import io
import itertools
import pickle

import pytest
import test_device
import torch
from device_process import on_device

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[::2, 1:],
    "expanded": lambda x: x[:1].expand(6, 4),
}


@on_device
def test_copies_keep_values_in_all_dtypes_and_layouts():
    torch.manual_seed(0)
    for source, layout in itertools.product(DTYPES, LAYOUTS.values()):
        x = (torch.randn(6, 4) * 3).to(source)
        for target in DTYPES:
            if source.is_complex and not target.is_complex:
                continue
            expected = layout(x).to(target)

            assert torch.equal(expected, layout(x).to("testdev", target).cpu())
            assert torch.equal(expected, layout(x.to("testdev")).to("cpu", target))
            assert torch.equal(expected, layout(x.to("testdev")).to(target).cpu())


@on_device
def test_copies_write_into_views():
    x, y = torch.randn(6, 4), torch.zeros(6, 4, device="testdev")
    y[::2].copy_(x[::2])
    y[1::2].copy_(x.to("testdev")[1::2])
    z = torch.zeros(4, 6)
    z.t().copy_(y)

    assert torch.equal(x, y.cpu())
    assert torch.equal(x, z.t())


@on_device
def test_conjugated_views_are_copied():
    x = torch.randn(3, dtype=torch.complex64)
    y, z = torch.zeros_like(x, device="testdev"), torch.zeros_like(x)
    y.conj().copy_(x)
    z.conj().copy_(y)

    assert torch.equal(x.conj(), y.cpu())
    assert torch.equal(x, z)


def results(device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator).to(device)
    index = torch.tensor([3, 1], device=device)
    y = torch.where(x > 0, x, 0.0)
    y[index] = 5
    y.index_add_(0, index, x[:2])
    values, order = x.sort(dim=0)
    empty = torch.empty(0, device=device)
    torch.add(x, 1, out=empty)
    return [
        y, values, order, empty, x @ x.t(), x.cumsum(0), torch.cat([x, y]), x.std(), x.nonzero(),
        x[x > 0], torch.unique(index), x.argmax(), torch.nn.functional.gelu(x), x.t().reshape(-1),
        torch.view_as_real(torch.complex(x, x)), x.unfold(0, 2, 1), torch.linalg.norm(x),
        torch.arange(3, device=device), torch.eye(3, device=device), x.bfloat16() * 2,
        *torch._foreach_norm([x, y]), *x.unbind(), torch.nn.functional.layer_norm(x, [4]),
    ]  # fmt: skip


@pytest.mark.parametrize("is_deferred", [True, False])
@on_device
def test_operators_give_what_the_cpu_gives(is_deferred):
    test_device.set_deferred(is_deferred)
    for expected, result in zip(results("cpu"), results("testdev"), strict=True):
        assert "testdev" == result.device.type
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-6, atol=1e-6)


@on_device
def test_most_operators_of_a_step_are_deferred():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8))
    net.to("testdev")
    x = torch.randn(2, 4, device="testdev")
    with test_device.held_stream():  # an operator that is not deferred would wait for ever
        total = net(x).sum()
        total.backward()

    assert total.item() == net(x).sum().item()


@on_device
def test_tensors_of_two_devices_do_not_mix():
    x = torch.ones(3, device="testdev")
    with pytest.raises(RuntimeError):
        x.add_(torch.ones(3))
    with pytest.raises(RuntimeError):
        torch.linalg.vector_norm(torch.stack([x, x.to("testdev:1")]))

    assert [3, 3, 3] == (x + torch.tensor(2.0)).tolist()


@on_device
def test_errors_of_shapes_come_at_once():
    x = torch.ones(2, 3, device="testdev")
    with pytest.raises(RuntimeError):
        torch.mm(x, x)


@on_device
def test_random_numbers_come_from_the_generator_of_the_device():
    torch.manual_seed(1)
    first = torch.rand(3, device="testdev:1")
    state = torch.testdev.get_rng_state(1)
    second = torch.rand(3, device="testdev:1")
    torch.testdev.set_rng_state(state, 1)
    own = torch.Generator("testdev:1").manual_seed(1)

    assert torch.equal(second.cpu(), torch.rand(3, device="testdev:1").cpu())
    assert torch.equal(first.cpu(), torch.rand(3, device="testdev:1", generator=own).cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert torch.equal(first.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(1)))


@on_device
def test_tensors_are_saved_and_loaded():
    x = torch.arange(6.0, device="testdev:1").view(2, 3)
    file = io.BytesIO()
    torch.save({"x": x}, file)

    for where, loaded in (
        ("testdev:1", torch.load(io.BytesIO(file.getvalue()))["x"]),
        ("testdev:0", torch.load(io.BytesIO(file.getvalue()), map_location="testdev:0")["x"]),
        ("cpu", torch.load(io.BytesIO(file.getvalue()), map_location="cpu")["x"]),
        ("testdev:1", pickle.loads(pickle.dumps(x))),
        ("testdev:1", copy.deepcopy(x)),
    ):
        assert where == str(loaded.device)
        assert torch.equal(x.cpu(), loaded.cpu())


@on_device
def test_tensors_print():
    assert "tensor([1., 2.], device='testdev:0')" == repr(torch.tensor([1.0, 2.0]).testdev())


@on_device
def test_autocast_casts_products():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)).to("testdev")
    with torch.autocast("testdev", torch.bfloat16):
        product = net[0](torch.ones(2, 4, device="testdev"))
        norm = net[1](product)

    assert (torch.bfloat16, torch.float32) == (product.dtype, norm.dtype)
    norm.sum().backward()
    assert torch.float32 == net[0].weight.grad.dtype
