# SPDX-License-Identifier: Apache-2.0
"""Models that are refused at once, by an error that names the part and the hint."""

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.capture import CaptureError, capture

BATCH = torch.ones(3, 4)


def test_a_wrapper_for_data_parallelism_is_refused():
    with pytest.raises(CaptureError, match=r"DataParallel.*Pass the model that it wraps"):
        capture(nn.DataParallel(nn.Linear(4, 4)), BATCH)


def test_a_model_compiled_as_a_whole_is_refused():
    in_place = nn.Linear(4, 4)
    in_place.compile(backend="eager")

    for model in (torch.compile(nn.Linear(4, 4), backend="eager"), in_place):
        with pytest.raises(CaptureError, match="compiled as a whole"):
            capture(model, BATCH)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_scripted_as_a_whole_is_refused():
    with pytest.raises(CaptureError, match="scripted as a whole"):
        capture(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), BATCH)


def test_parameters_without_shape_are_refused():
    with pytest.raises(CaptureError, match=r"'0\.weight' has no shape yet.*Run the model once"):
        capture(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), BATCH)


class Odd(torch.Tensor):
    """A tensor with behaviour of its own."""


def test_parameters_with_behaviour_of_their_own_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_buffer("scale", torch.ones(4).as_subclass(Odd))

    with pytest.raises(CaptureError, match=r"'1\.scale' is a Odd"):
        capture(model, BATCH)


def test_inputs_with_behaviour_of_their_own_are_refused():
    with pytest.raises(CaptureError, match="an input of the model is a Odd"):
        capture(Named(), torch.ones(3, 4).as_subclass(Odd))


def test_a_trained_tensor_that_is_no_parameter_is_refused():
    model = Named()
    model.second.scale = torch.ones(4, requires_grad=True)

    with pytest.raises(CaptureError, match=r"'second\.scale' requires a gradient.*nn\.Parameter"):
        capture(model, BATCH)


def test_two_parameters_in_one_memory_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)

    with pytest.raises(CaptureError, match=r"'1\.weight' and '0\.weight'.*same memory"):
        capture(model, BATCH)


@pytest.mark.parametrize("option", ["opened", "closed"])
def test_names_of_no_module_are_refused_with_the_closest(option):
    with pytest.raises(CaptureError, match=r"no module 'first_'.*'first'"):
        capture(Named(), BATCH, **{option: ["first_"]})


def test_a_name_like_none_is_refused_without_all_the_others():
    with pytest.raises(CaptureError, match=r"Take one of model\.named_modules\(\)"):
        capture(Named(), BATCH, opened=["zzz"])


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))
