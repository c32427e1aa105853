# SPDX-License-Identifier: Apache-2.0
"""Functions with a backward pass of their own, hooks, and checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from smdist.modelparallel.torch.capture import CaptureError, capture


class Wrong(torch.autograd.Function):
    """x * 2 with the gradient of x * 10: whoever records the forward pass alone is found out."""

    @staticmethod
    def forward(ctx, x, factor=10):
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Split(torch.autograd.Function):
    """The newer form, with a context of its own."""

    @staticmethod
    def forward(x, factor=10):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


by_reference = Wrong.apply


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.between(self.a(x)))


@pytest.mark.parametrize("function", [Wrong.apply, by_reference, Split.apply])
def test_a_functions_own_backward_pass_is_kept(torn, function):
    class Model(Two):
        def between(self, h):
            return function(h)

    model, batch = Model(), torch.randn(3, 4)

    found = torn(model, batch)

    titles = [node.type for node in found.captured.graph.nodes]
    assert found.relative_error <= 1e-6
    assert "apply" in titles
    assert "mul" not in titles


def test_a_function_that_changes_its_argument_is_kept(torn):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    class Model(Two):
        def between(self, h):
            return Double.apply(h)

    found = torn(Model(), torch.randn(3, 4))

    assert found.relative_error <= 1e-6


def test_hooks_on_units_run_as_ever(torn):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_forward_hook(lambda module, args, output: output * 3)
    model[1].register_full_backward_hook(lambda module, into, out: (into[0] * 5,))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    found = torn(model, torch.randn(3, 4))

    assert 3 == len(found.stages)
    assert found.relative_error <= 1e-6


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = Plain(), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(x))


class Plain(Two):
    def between(self, h):
        return h


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.register_forward_hook(lambda module, args, output: output * 3),
        lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
        lambda m: m.register_full_backward_hook(lambda module, into, out: (into[0] * 3,)),
        lambda m: m.register_full_backward_pre_hook(lambda module, out: (out[0] * 3,)),
    ],
)
def test_a_container_with_hooks_is_a_unit(torn, register):
    model = Nested()
    register(model.inner)

    found = torn(model, torch.randn(3, 4, requires_grad=True))

    assert (("inner",), ("last",)) == found.stages
    assert found.relative_error <= 1e-6


def test_hooks_on_the_model_itself_are_refused():
    model = Nested()
    model.register_forward_hook(lambda module, args, output: output * 3)

    with pytest.raises(CaptureError) as caught:
        capture(model, torch.randn(3, 4))

    assert "hooked" == caught.value.kind


@pytest.mark.parametrize(
    "call", [lambda h: h.register_hook(lambda g: g * 2), lambda h: h.retain_grad()]
)
def test_hooks_on_tensors_keep_their_module_whole(torn, call):
    class Hooked(Plain):
        def between(self, h):
            call(h)
            return h

    model = Nested()
    model.inner = Hooked()

    found = torn(model, torch.randn(3, 4))

    assert (("inner",), ("last",)) == found.stages
    assert found.relative_error <= 1e-6


def test_hooks_on_tensors_of_the_model_itself_are_refused():
    class Model(Two):
        def between(self, h):
            h.register_hook(lambda gradient: gradient * 2)
            return h

    with pytest.raises(CaptureError) as caught:
        capture(Model(), torch.randn(3, 4))

    line = f"{__file__}:{Model.between.__code__.co_firstlineno + 1}"
    assert ("unsupported_function", line) == (caught.value.kind, caught.value.line)
    assert (
        f"the forward function of Model cannot be recorded at {line}: it calls register_hook() on a"
        " tensor. Move these lines into a submodule, which then stays whole." == str(caught.value)
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_unit_is_checkpointed_in_its_stage(torn, reentrant):
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Counted(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model, batch = Model(), torch.randn(3, 4, requires_grad=True)
    captured = capture(model, batch)
    calls.clear()

    found = torn(model, batch)

    settings = [call.checkpoint for call in captured.program.calls if call.is_unit]
    assert [reentrant] * 3 == [setting["use_reentrant"] for setting in settings]
    assert found.relative_error <= 1e-6


def test_units_in_a_checkpointed_function_get_one_each(torn):
    """Recomputation of a checkpointed dropout draws the same random numbers."""

    class Saving(Plain):
        def forward(self, x):
            return checkpoint(self.inside, x, use_reentrant=False)

        def inside(self, x):
            return self.b(nn.functional.dropout(self.a(x).relu()))

    model = Nested()
    model.inner = Saving()

    found = torn(model, torch.randn(3, 4))

    calls = found.captured.program.call
    assert calls["inner.a"].checkpoint is not None
    assert calls["last"].checkpoint is None
    assert found.relative_error <= 1e-6


def test_a_checkpoint_around_operations_keeps_its_module_whole(torn):
    class Saving(Plain):
        def between(self, h):
            return checkpoint(torch.sin, h, use_reentrant=False)

    model = Nested()
    model.inner = Saving()

    found = torn(model, torch.randn(3, 4))

    assert (("inner",), ("last",)) == found.stages
    assert found.relative_error <= 1e-6
