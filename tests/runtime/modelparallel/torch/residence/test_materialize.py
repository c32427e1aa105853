# SPDX-License-Identifier: Apache-2.0
"""Models that are made without values get those of a rank's stages, the same under any layout."""

import pytest
import torch
import zoo
from tied import HALVES, IDS, Tied
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import place
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.materialization import (
    delay_param_initialization,
    materialize,
    model_creation,
)
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.tensor_parallel.marks import chosen
from smdist.modelparallel.torch.verification.verify_request import placement_of


def bare(name="gpt2"):
    with torch.device("meta"):
        return zoo.tiny(name).model


def whole(model, **options):
    materialize(model, {0: model}, **options)
    return model


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_stages_get_what_one_process_gets(name):
    """Tied weights too, on each stage that holds them; the rest stays without values."""
    batch, expected = zoo.tiny(name).batch, dict(whole(bare(name)).named_parameters())
    for number in range(3):
        model = bare(name)
        captured = capture(model, batch)
        stage = StageModule(captured, placement_of(captured.graph, 3, None), number)
        materialize(model, {number: stage})
        held = {id(parameter) for parameter in stage.parameters()}

        for key, parameter in model.named_parameters():
            assert (id(parameter) in held) != parameter.is_meta
            assert parameter.is_meta or torch.equal(expected[key], parameter), key
        assert not any(buffer.is_meta for buffer in stage.buffers())


def test_numbers_go_by_names_and_by_the_seed():
    """Equal modules start differently, and so does another run."""
    model, other = whole(bare()), whole(bare(), seed=1)
    first, second = (block.mlp.c_fc.weight for block in model.transformer.h[:2])

    assert not torch.equal(first, second)
    assert not torch.equal(first, other.transformer.h[0].mlp.c_fc.weight)


def test_the_models_own_initialisation_is_run():
    """transformers' for what it knows, PyTorch's for the rest; the caller's numbers go on."""
    state = torch.get_rng_state()
    model = whole(bare())

    assert torch.equal(state, torch.get_rng_state())
    assert model.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert torch.equal(torch.zeros(1), model.transformer.h[0].mlp.c_fc.bias.unique())


@pytest.mark.parametrize("name", ["llama", "mixtral", "resnet", "bert"])
def test_tables_and_statistics_are_computed(name):
    """Rotary tables are in no checkpoint."""
    expected, found = dict(zoo.tiny(name).model.named_buffers()), whole(bare(name)).named_buffers()
    for key, buffer in found:
        assert torch.equal(expected[key], buffer), key


def test_what_has_values_keeps_them():
    """Tensors with values keep them, for example after loading some of them."""
    model = bare()
    loaded = nn.Parameter(torch.full_like(model.transformer.ln_f.weight, 3, device="cpu"))
    model.transformer.ln_f.weight = loaded
    whole(model)

    assert model.transformer.ln_f.weight is loaded
    assert 3 == loaded.unique().item()
    assert not model.transformer.ln_f.bias.is_meta


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x + self.token)


def test_a_module_that_cannot_is_named():
    """A tensor that no module initialises is an error, or 0 if a checkpoint follows."""
    with delay_param_initialization():
        model = Marked()
    with pytest.raises(OptionError) as caught:
        whole(model)

    assert ("token",) == caught.value.about
    assert ("token",) == materialize(model, {0: model}, strict=False)
    assert [0, 0] == model.token.tolist()


class Failing(nn.Linear):
    def reset_parameters(self):
        raise ValueError("no values here")


def test_an_initialisation_that_fails_is_named():
    """The error has the module and the text of its exception."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        model[0].__class__ = Failing
    with pytest.raises(OptionError) as caught:
        whole(model)

    assert (("0",), "failed") == (caught.value.about, caught.value.kind)
    assert "no values here" == str(caught.value.__cause__)


def test_parameters_made_in_a_block_have_no_values_and_buffers_have():
    """Ties hold; outside of the block, and in one that is off, all is as ever."""
    with delay_param_initialization():
        model, norm = Tied(), nn.BatchNorm1d(3)
        with delay_param_initialization(enabled=False):
            inner = nn.Linear(2, 2)

    assert all(parameter.is_meta for parameter in [*model.parameters(), *norm.parameters()])
    assert model.first.weight is model.last.weight
    assert not any(buffer.is_meta for buffer in norm.buffers())
    assert not any(parameter.is_meta for parameter in inner.parameters())
    assert not any(parameter.is_meta for parameter in nn.Linear(2, 2).parameters())


def test_a_parameter_that_two_modules_are_given_stays_one():
    """A parameter that two modules share stays one parameter."""
    shared = nn.Parameter(torch.ones(2, 2))
    with delay_param_initialization():
        one, two = nn.Linear(2, 2), nn.Linear(2, 2)
        one.weight = two.weight = shared

    assert one.weight is two.weight
    assert one.weight.is_meta


def test_models_are_made_in_a_type():
    """Models are created in a dtype, and torch's default dtype is restored."""
    with model_creation(dtype=torch.bfloat16):
        layer = nn.Linear(2, 2)

    assert (torch.bfloat16, True) == (layer.weight.dtype, layer.weight.is_meta)
    assert torch.float32 is torch.get_default_dtype()


def test_model_creation_chooses_modules_to_split_as_awss_scripts_ask():
    """`tensor_parallelism` marks what is made in the block; features that are off may be named."""
    with model_creation(tensor_parallelism=True, zero_init=False, fused_bias_gelu=False):
        inside = nn.Linear(2, 2)
    with model_creation(tensor_parallelism=False):
        unmarked = nn.Linear(2, 2)

    assert {"0": True, "1": False} == {
        name: is_split for name, is_split in chosen(nn.Sequential(inside, unmarked)).items() if name
    }
    assert inside.weight.is_meta


def test_what_model_creation_cannot_do_is_refused_at_once():
    """Arguments that are not supported are refused by name, all at once."""
    with (
        pytest.raises(OptionError) as caught,
        model_creation(tensor_parallelism="yes", dtype=torch.int8, flash_attention=True),
    ):
        pass

    assert [("tensor_parallelism",), ("flash_attention",), ("dtype",)] == [
        fault.about for fault in caught.value.faults
    ]


def test_halves_of_a_delayed_model_run():
    """Stages of a model that was created without values run."""
    with delay_param_initialization():
        model = Tied()
    captured = capture(model, IDS)
    placement = place(captured.graph, HALVES)
    stage = StageModule(captured, placement, 0)
    materialize(model, {0: stage})
    values = stage({}, ((IDS,), {}))

    assert all(value.isfinite().all() for value in values.values())
