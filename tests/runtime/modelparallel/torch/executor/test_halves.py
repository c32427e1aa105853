# SPDX-License-Identifier: Apache-2.0
"""Two halves of a backward pass leave what one leaves, whatever the graph looks like."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.executor.split_backward import backward_inputs


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def agree(model, *inputs, run=None, deferred=None):
    """Run both ways: gradients are the same bits. Names of parameters that waited for W."""
    run = run or (lambda model, *inputs: [model(*inputs)])
    named = dict(model.named_parameters())
    expected, outputs = _leaves(inputs), None
    outputs = run(model, *expected)
    roots = [(each, torch.randn_like(each)) for each in outputs]
    _backward(roots)
    gradients = [each.grad for each in expected]
    trained = {name: parameter.grad for name, parameter in named.items()}
    model.zero_grad()
    leaves = _leaves(inputs)
    again = run(model, *leaves)
    roots = [(each, gradient) for each, (_, gradient) in zip(again, roots, strict=True)]
    found, rest = backward_inputs(roots, leaves)
    early = {name for name, parameter in named.items() if parameter.grad is not None}
    rest.backward_parameters()

    assert all(map(_is_same, gradients, found)), "inputs"
    assert [] == [n for n, each in trained.items() if not _is_same(each, named[n].grad)]
    assert all(each.grad is None for each in leaves)
    return {name for name, each in trained.items() if each is not None} - early


def _leaves(inputs):
    return [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]


def _backward(roots):
    wanted = [(tensor, gradient) for tensor, gradient in roots if tensor.requires_grad]
    torch.autograd.backward([each for each, _ in wanted], [each for _, each in wanted])


def _is_same(one, other):
    return one is other if one is None or other is None else torch.equal(one, other)


def given(*shape):
    return torch.randn(*shape, requires_grad=True)


class Product(nn.Module):
    """Any function of an input and two parameters."""

    def __init__(self, function, weight, bias=(1,), dtype=torch.float32):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(weight, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(bias, dtype=dtype))

    def forward(self, x):
        return self.function(x, self.weight, self.bias)


PRODUCTS = {
    "linear": (functional.linear, (2, 5, 4), (3, 4), (3,)),
    "mm": (lambda x, w, b: x @ w + 0 * b, (5, 4), (4, 3)),
    "mm, parameter left": (lambda x, w, b: w @ x + 0 * b, (4, 5), (3, 4)),
    "mm, parameter left and turned": (lambda x, w, b: w.t() @ x.t() + 0 * b, (5, 4), (4, 3)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w, beta=0.3, alpha=2), (5, 4), (4, 3), (3,)),
    "addmm, left": (lambda x, w, b: torch.addmm(b, w, x, alpha=0.5), (4, 5), (3, 4), (3, 1)),
    "bmm": (lambda x, w, b: torch.bmm(x, w) + 0 * b, (2, 5, 4), (2, 4, 3)),
    "bmm, left": (lambda x, w, b: torch.bmm(w, x) + 0 * b, (2, 4, 5), (2, 3, 4)),
    "baddbmm": (
        lambda x, w, b: torch.baddbmm(b, x, w, beta=3, alpha=2), (2, 5, 4), (2, 4, 3), (3,)
    ),
    "conv2d": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=1), (2, 3, 6, 6), (4, 3, 3, 3), (4,)
    ),
    "conv1d, groups": (
        lambda x, w, b: functional.conv1d(x, w, b, stride=2, groups=2), (2, 4, 9), (6, 2, 3), (6,)
    ),
    "transposed": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b), (2, 3, 4, 4), (3, 2, 2, 2), (2,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_of_products_wait(name):
    function, shape, *parameters = PRODUCTS[name]
    model = Product(function, *parameters)

    assert "weight" in agree(model, given(*shape))


def test_complex_products_are_conjugated():
    model = Product(lambda x, w, b: x @ w + b, (4, 3), (3,), torch.complex64)
    x = torch.randn(5, 4, dtype=torch.complex64, requires_grad=True)

    assert "weight" in agree(model, x)


def test_biases_of_linear_layers_wait_with_their_weights():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))

    assert {"0.weight", "0.bias", "3.weight", "3.bias"} == agree(model, given(3, 4))


def test_a_module_that_is_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(x).relu())

    assert {"inner.weight", "inner.bias"} == agree(Twice(), given(3, 4))


def test_a_parameter_that_is_a_factor_and_a_summand_too_gets_its_gradient_at_once():
    """By a path that waits and one that cannot: hooks would see half of it otherwise."""
    model = Product(lambda x, w, b: x @ w + w.sum(0) * b, (4, 4))
    seen = []
    model.weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.clone()))
    waited = agree(model, given(3, 4))

    assert set() == waited
    assert 2 == len(seen)
    assert torch.equal(*seen)


def test_a_branch_that_ends_in_no_product_runs_at_once():
    """An embedding that nothing leads to and the head after it, with one weight."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(x) + self.head(self.table(torch.tensor([1, 1, 2]))).tanh()

    assert set() == agree(Tied(), given(3, 4))


def test_tied_weights_that_are_factors_only_wait():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
            self.down.weight = self.up.weight

        def forward(self, x):
            return self.down(self.up(x).tanh()) + self.up(x)

    assert {"up.weight", "down.bias"} == agree(Tied(), given(3, 4))


def test_a_weight_that_is_computed_from_parameters():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    waited = agree(model, given(3, 4))

    assert {name for name, _ in model.named_parameters()} == waited


def test_an_input_that_is_an_output():
    model = nn.Linear(4, 4)

    assert {"weight", "bias"} == agree(model, given(3, 4), run=lambda model, x: [x, model(x), x])


def test_without_inputs_everything_waits():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    assert 4 == len(agree(model, torch.randn(3, 4)))


def test_without_parameters_nothing_waits():
    assert set() == agree(nn.GELU(), given(3, 4))


def test_what_gets_no_gradient_has_none():
    """An input that is not used, one that needs none, a parameter that is not used."""
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def run(model, x, unused, mask):
        return [model[0](x) * mask, mask]

    inputs = given(3, 4), given(3, 4), torch.ones(3, 4)

    assert {"0.weight", "0.bias"} == agree(model, *inputs, run=run)


def test_a_gradient_that_ends_on_the_way():
    """A function that passes none on: what is before it stays without."""

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    waited = agree(model, given(3, 4), run=lambda model, x: [model[1](Ends.apply(model[0](x)))])

    assert {"1.weight", "1.bias"} == waited


def test_a_scalar_root_has_the_gradient_one():
    model, x = nn.Linear(4, 4), given(3, 4)
    model(x).mean().backward()
    expected, x.grad = [x.grad, model.weight.grad], None
    model.zero_grad()
    (found,), rest = backward_inputs([(model(x).mean(), None)], [x])
    rest.backward_parameters()

    assert all(map(torch.equal, expected, [found, model.weight.grad]))


def test_a_scalar_root_that_waits_has_it_too():
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    _, rest = backward_inputs([(model(x).sum(), None)], [x])
    rest.backward_parameters()

    assert torch.equal(torch.full((4,), 3.0), model.bias.grad)


def test_operations_in_place():
    def run(model, x):
        y = model[0](x)
        y[0] += 1
        y.relu_()
        return [model[1](y).mul_(2)]

    assert 4 == len(agree(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), given(3, 4), run=run))


def test_functions_of_users_run_once():
    class Scaled(torch.autograd.Function):
        runs = 0

        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            Scaled.runs += 1
            x, weight = ctx.saved_tensors
            return gradient * weight, gradient * x

    def run(model, x):
        return [model(Scaled.apply(model(x), model.weight))]

    assert set() == agree(nn.Linear(4, 4, bias=False), given(4, 4), run=run)
    assert 2 == Scaled.runs, "once in one pass, once in two halves"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_computes_again_once(use_reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout()))
    runs = []
    model[1].register_forward_pre_hook(lambda *_: runs.append(1))

    def run(model, x):
        torch.manual_seed(0)
        hidden = checkpoint(model[1], model[0](x), use_reentrant=use_reentrant)
        return [model[0](hidden)]

    waited = agree(model, given(3, 4), run=run)

    assert (set() if use_reentrant else {"0.weight", "0.bias"}) == waited
    assert 4 == len(runs), "forward and again, each way"


def test_saved_tensors_elsewhere_are_fetched_once():
    fetched = []

    def fetch(tensor):
        fetched.append(1)
        return tensor

    def run(model, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fetch):
            return [model(x)]

    assert set() == agree(nn.Linear(4, 4), given(3, 4), run=run)
    assert 4 == len(fetched), "both factors, each way"


def test_hooks_on_parameters_run_once_and_on_the_whole_gradient():
    model, seen = nn.Linear(4, 4), []

    def run(model, x):
        return [model(model(x))]

    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
        parameter.register_post_accumulate_grad_hook(lambda each: seen.append(id(each)))
    agree(model, given(3, 4), run=run)

    assert 4 == len(seen), "two parameters, each way"


def test_hooks_of_modules_see_what_they_saw():
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_full_backward_hook(lambda _, inputs, outputs: seen.append(inputs[0].clone()))
    agree(model, given(3, 4))

    assert 2 == len(seen)
    assert torch.equal(*seen)


def test_mixed_precision():
    def run(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return [model(x).float()]

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    assert 4 == len(agree(model, given(3, 8), run=run))


def test_microbatches_add_up_in_any_order():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    batches = [given(3, 4) for _ in range(3)]
    sum(model(x).square().sum() for x in batches).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    rests = [backward_inputs([(model(x).square().sum(), None)], [x])[1] for x in batches]
    for rest in reversed(rests):
        rest.backward_parameters()

    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-6)


def test_gradients_of_earlier_are_left_as_they_were():
    model, x = nn.Linear(4, 4), given(3, 4)
    before = x.grad = torch.ones(3, 4)
    (found,), _ = backward_inputs([(model(x).sum(), None)], [x])

    assert x.grad is before
    assert not torch.equal(before, found)


def test_a_fault_in_a_backward_pass_leaves_no_trace():
    """What is raised is raised, and the inputs' own gradients are as they were."""
    model, x = nn.Linear(4, 4), given(3, 4)
    hidden = model(x)
    hidden.register_hook(_fail)
    with pytest.raises(ArithmeticError, match="no more"):
        backward_inputs([(hidden.sum(), None)], [x])

    assert x.grad is None


def _fail(_):
    raise ArithmeticError("no more")


def test_an_input_that_is_computed_is_refused():
    with pytest.raises(OptionError) as caught:
        backward_inputs([], [given(2), given(2) * 2])

    assert ("inputs", 1) == caught.value.about
