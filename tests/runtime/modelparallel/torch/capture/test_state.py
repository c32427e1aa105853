# SPDX-License-Identifier: Apache-2.0
"""Side effects of forward functions in Python are found: such a module is a unit, or refused."""

import functools
import gc
import random
import warnings
from threading import Thread

import numpy
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from smdist.modelparallel.torch.capture import CaptureError, capture

BATCH = torch.ones(3, 4)


class Boxed(nn.Module):
    """A model around a module, so that the module may become a unit."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.calls, self.log, self.seen = 0, [], {}


def count(module, h):
    module.calls += 1
    return h * module.calls


def append(module, h):
    module.log.append(h)
    return module.log[-1]


def remember(module, h):
    module.last = h
    return module.last


def file(module, h):
    module.seen["h"] = h
    return module.seen["h"]


def roll(module, h):
    return h * random.random()


def roll_numpy(module, h):
    return h * float(numpy.random.rand())


def replace(module, h):
    return h + torch.func.functional_call(module.a, {"weight": module.b.weight}, h)


def seed(module, h):
    torch.manual_seed(1)
    return h + torch.randn(4)


def generate(module, h):
    return h + torch.randn(4, generator=torch.Generator().manual_seed(1))


def penalise(module, h):
    return h + torch.autograd.grad(module.a(h).sum(), h, create_graph=True)[0]


def vectorise(module, h):
    return torch.vmap(torch.sin)(h)


HABITS = {  # kind and about of the error for each function
    count: ("changed_attribute", ("calls",)),
    append: ("changed_attribute", ("log",)),
    remember: ("changed_attribute", ("last",)),
    file: ("changed_attribute", ("seen",)),
    roll: ("random_numbers", ()),
    roll_numpy: ("random_numbers", ()),
    replace: ("changed_attribute", ("a._parameters",)),
    seed: ("random_numbers", ()),
    generate: ("random_numbers", ()),
    penalise: ("unsupported_function", ()),
    vectorise: ("unrecorded_tensor", ()),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_module_with_a_habit_stays_whole(units_of, habit):
    class Inner(Two):
        def forward(self, x):
            return self.b(habit(self, self.a(x)))

    model = Boxed(Inner())

    assert ["first", "inner", "last"] == units_of(model, BATCH)


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_of_the_model_itself_is_refused(habit):
    class Model(Two):
        def forward(self, x):
            return self.b(habit(self, self.a(x)))

    with pytest.raises(CaptureError) as caught:
        capture(Model(), BATCH)

    assert HABITS[habit] == (caught.value.kind, caught.value.about)


@pytest.mark.parametrize("habit", HABITS)
def test_a_model_is_as_it_was(habit):
    class Inner(Two):
        def forward(self, x):
            return self.b(habit(self, self.a(x)))

    model = Boxed(Inner())
    before = [
        {key: (id(value), repr(value)) for key, value in vars(module).items()}
        for module in model.modules()
    ]
    weights = [id(parameter) for parameter in model.parameters()]
    draws = random.getstate(), numpy.random.get_state()[2], torch.get_rng_state()

    capture(model, BATCH)

    after = [
        {key: (id(value), repr(value)) for key, value in vars(module).items()}
        for module in model.modules()
    ]
    assert before == after
    assert weights == [id(parameter) for parameter in model.parameters()]
    assert draws[:2] == (random.getstate(), numpy.random.get_state()[2])
    assert torch.equal(draws[2], torch.get_rng_state())


def test_a_model_is_as_it_was_after_an_error():
    class Model(Two):
        def forward(self, x):
            raise KeyError("mine")

    model = Model()
    weights = [id(parameter) for parameter in model.parameters()]
    call = nn.Module.__call__

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    assert "failed" == caught.value.kind
    assert KeyError is type(caught.value.__cause__)

    assert weights == [id(parameter) for parameter in model.parameters()]
    assert call is nn.Module.__call__
    assert torch.equal(BATCH @ model.a.weight.T, BATCH @ model.a.weight.T)


def test_nothing_of_a_run_without_numbers_stays_alive():
    capture(Boxed(nn.Linear(4, 4)), BATCH)
    gc.collect()

    assert [] == [each for each in gc.get_objects() if type(each) is FakeTensor]


@functools.lru_cache(maxsize=4)
def mask(size):
    return torch.tril(torch.ones(size, size))


@functools.cache
def masks(size):
    return {"causal": (torch.tril(torch.ones(size, size)),)}


class Masked(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ mask(4)


def test_caches_hold_real_tensors_afterwards(torn):
    """Glue fills one and a unit the other; in each run of a capture as well."""

    class Model(Two):
        def __init__(self):
            super().__init__()
            self.b = Masked(4, 4)

        def forward(self, x):
            return self.b(self.a(x) @ masks(4)["causal"][0])

    model = Model()
    mask.cache_clear()
    masks.cache_clear()

    capture(model, BATCH)

    assert 0 == mask.cache_info().currsize == masks.cache_info().currsize
    assert type(model(BATCH)) is torch.Tensor
    assert torn(model, BATCH).relative_error <= 1e-6


def test_a_trial_leaves_no_marks_on_the_users_tensors():
    class Same(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else self.weight.contiguous()[:3]

    model = nn.Sequential(nn.Linear(4, 4), Same(4, 4))

    capture(model, BATCH)

    assert {} == vars(model[1].weight)


def test_warnings_are_left_to_real_runs(recwarn):
    class Warns(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            warnings.warn("mine", stacklevel=1)
            return self.a(x)

    capture(Warns(), BATCH)

    assert [] == recwarn.list


def test_other_threads_are_not_recorded():
    """Calls of other threads run normally while a model is captured."""
    other = nn.Linear(4, 4)
    found = []

    class Starting(Two):
        def forward(self, x):
            thread = Thread(target=lambda: found.append(other(BATCH)))
            thread.start()
            thread.join(timeout=30)
            return self.b(self.a(x))

    graph = capture(Starting(), BATCH).graph

    assert ["input:0", "a", "b"] == [node.name for node in graph.nodes]
    assert torch.equal(other(BATCH), found[0])


def test_a_unit_may_have_habits(torn):
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    model = nn.Sequential(nn.Linear(4, 4), Counting(4, 4), nn.Linear(4, 4))

    found = torn(model, BATCH)

    assert 3 == len(found.stages)
    assert found.output_error <= 1e-6
    assert 0 == model[1].calls


class Appending(nn.Linear):
    def forward(self, x, log):
        log.append(x)
        return super().forward(x)


def test_a_list_that_a_unit_fills_keeps_the_module_around_whole(units_of):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Appending(4, 4)

        def forward(self, x):
            log = []
            return self.a(x, log) + log[0]

    assert ["first", "inner", "last"] == units_of(Boxed(Inner()), BATCH)


def test_an_object_that_a_unit_writes_to_keeps_the_module_around_whole(units_of):
    class Notes:
        def __init__(self):
            self.kept = {}

    class Noting(nn.Linear):
        def forward(self, x, notes):
            notes.kept["x"] = x
            return super().forward(x)

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Noting(4, 4)

        def forward(self, x):
            notes = Notes()
            return self.a(x, notes) + notes.kept["x"]

    assert ["first", "inner", "last"] == units_of(Boxed(Inner()), BATCH)


def test_a_cache_of_keys_and_values_is_refused_with_its_hint():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=16, bos_token_id=0, eos_token_id=0, use_cache=True
    )

    with pytest.raises(CaptureError) as caught:
        capture(GPT2LMHeadModel(config), torch.zeros(1, 4, dtype=torch.long))

    assert ("cache", ("transformer",)) == (caught.value.kind, caught.value.about)
