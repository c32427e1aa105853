# SPDX-License-Identifier: Apache-2.0
"""Models that are refused at once, by an error that names the part and the hint."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture

BATCH = torch.ones(3, 4)


def test_a_wrapper_for_data_parallelism_is_refused():
    with pytest.raises(CaptureError) as caught:
        capture(nn.DataParallel(nn.Linear(4, 4)), BATCH)

    assert ("wrapped", ()) == (caught.value.kind, caught.value.about)


def test_a_model_compiled_as_a_whole_is_refused():
    in_place = nn.Linear(4, 4)
    in_place.compile(backend="eager")

    for model in (torch.compile(nn.Linear(4, 4), backend="eager"), in_place):
        with pytest.raises(CaptureError) as caught:
            capture(model, BATCH)

        assert "compiled" == caught.value.kind


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_scripted_as_a_whole_is_refused():
    with pytest.raises(CaptureError) as caught:
        capture(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), BATCH)

    assert "scripted" == caught.value.kind


def test_parameters_without_shape_are_refused():
    with pytest.raises(CaptureError) as caught:
        capture(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), BATCH)

    assert ("no_shape", ("0.weight",)) == (caught.value.kind, caught.value.about)


class Odd(torch.Tensor):
    """A tensor with behaviour of its own."""


def test_parameters_with_behaviour_of_their_own_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_buffer("scale", torch.ones(4).as_subclass(Odd))

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    assert ("tensor_subclass", ("1.scale",)) == (caught.value.kind, caught.value.about)


def test_inputs_with_behaviour_of_their_own_are_refused():
    with pytest.raises(CaptureError) as caught:
        capture(Named(), torch.ones(3, 4).as_subclass(Odd))

    assert ("tensor_subclass", ()) == (caught.value.kind, caught.value.about)


def test_a_trained_tensor_that_is_no_parameter_is_refused():
    model = Named()
    model.second.scale = torch.ones(4, requires_grad=True)

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    assert ("not_a_parameter", ("second.scale",)) == (caught.value.kind, caught.value.about)


def test_two_parameters_in_one_memory_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)

    with pytest.raises(CaptureError) as caught:
        capture(model, BATCH)

    assert ("shared_memory", ("1.weight", "0.weight")) == (caught.value.kind, caught.value.about)


@pytest.mark.parametrize("option", ["opened", "closed"])
def test_names_of_no_module_are_refused_with_the_closest(option):
    with pytest.raises(CaptureError) as caught:
        capture(Named(), BATCH, **{option: ["first_"]})

    assert ("unknown_module", ("first_",)) == (caught.value.kind, caught.value.about)
    assert "'first'" in caught.value.hint


def test_a_name_like_none_is_refused_without_all_the_others():
    with pytest.raises(CaptureError) as caught:
        capture(Named(), BATCH, opened=["zzz"])

    assert ("unknown_module", ("zzz",)) == (caught.value.kind, caught.value.about)
    assert not any(name in str(caught.value) for name, _ in Named().named_modules() if name)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))
