# SPDX-License-Identifier: Apache-2.0
"""The layout that is found for a model, its proof, and the reasons for what stays whole."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from error_fields import fields_of
from tensor_models import LENGTH, MODELS, WIDTH, made
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.tensor_parallel import find
from smdist.modelparallel.torch.tensor_parallel.data_flow import flow_of
from smdist.modelparallel.torch.tensor_parallel.proof import WholeBlock
from smdist.modelparallel.torch.tensor_parallel.search import find_plan
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model
from smdist.modelparallel.torch.tensor_splits import TensorSplit, split_of

IDS = torch.arange(2 * LENGTH).view(2, LENGTH)


def plan_of(model, degree=2, arguments=(IDS,)):
    return find(model, (arguments, {}), degree)


@cache
def known(name):
    """Return the plan of a model for two ranks, which several tests look at."""
    return plan_of(made(name))


def roles(plan):
    return {each.name: each.role.value for each in plan.modules}


def reasons(plan):
    return {each.module: each.kind for each in plan.whole}


class AloneOf:
    """Peers of one rank that exchanges nothing."""

    def __init__(self, size, rank):
        self.size, self.rank = size, rank


def test_the_layout_of_an_mlp_has_pairs_a_gated_pair_and_a_tied_table():
    plan = known("mlp")

    assert roles(plan) == {
        "up": "column",
        "down": "row",
        "gate": "column",
        "value": "column",
        "out": "row",
        "table": "vocabulary",
        "head": "joined",
    }
    assert {} == reasons(plan)
    assert 7 == sum(1 for _ in plan.modules)


def test_the_layout_of_gpt2_has_fused_projections_in_three_sections():
    plan = known("gpt2")
    attention = next(each for each in plan.regions if each.block == "transformer.h.0.attn")
    fused = attention.modules[0]

    assert ("column", (WIDTH, WIDTH, WIDTH)) == (fused.role.value, fused.sections)
    assert {"weight": 1, "bias": 0} == fused.dims
    assert ("split_size", WIDTH, WIDTH // 2) in {
        (each.name, each.whole, each.part) for each in attention.attributes
    }
    assert {"transformer.wpe": "small"} == reasons(plan)
    assert "joined" == roles(plan)["lm_head"]


def test_the_layout_of_llama_is_that_of_its_own_plan():
    plan = known("llama")
    attention, mlp = plan.regions[:2]

    assert ("model.layers.0.self_attn", "model") == (attention.block, attention.origin)
    assert ["column"] * 3 + ["row"] == [each.role.value for each in attention.modules]
    assert ["column"] * 2 + ["row"] == [each.role.value for each in mlp.modules]
    assert {} == reasons(plan)


def test_a_head_is_split_alone_if_it_feeds_nothing_and_has_many_outputs():
    """A product that feeds another one is tried with it, and stays whole if that is wrong."""
    model = nn.Sequential(nn.Embedding(64, 8), nn.LayerNorm(8), nn.Linear(8, 32))
    model.append(nn.Softmax(-1))
    ids = torch.arange(6).view(2, 3)

    assert "joined" == roles(plan_of(model, arguments=(ids,)))["2"]
    assert {"2": "indivisible"} == reasons(plan_of(model, 64, (ids,)))
    model.extend([nn.LayerNorm(32), nn.Linear(32, 8)])
    assert {"2": "unproved", "5": "unproved"} == reasons(plan_of(model, arguments=(ids,)))


def test_biases_whose_gradient_is_rounding_alone_are_no_reason():
    """The output of attention does not depend on the biases of its keys, whatever its width."""
    options = {"attention_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    attention = smp.nn.DistributedAttentionLayer(8, 64, 512, **options)
    x = torch.randn(1, 16, 512)
    found = plan_of(attention, arguments=((x, None),))

    assert {"query": "column", "key": "column", "value": "column", "dense": "row"} == roles(found)


def test_heads_that_the_degree_does_not_divide_keep_attention_whole():
    found = reasons(plan_of(made("llama"), degree=4))

    assert "indivisible" == found["model.layers.0.self_attn.q_proj"]
    assert "model.layers.0.mlp.down_proj" not in found


def test_modules_of_dropout_inside_of_a_region_are_split_with_it():
    plan = plan_of(made("smp", dropout=0.1))
    inside = {
        each.name.removeprefix("transformer.seq_layers."): each.dim
        for region in plan.regions
        for each in region.dropouts
    }

    assert {"position_embedding": "small"} == reasons(plan)
    assert {"0.attention.dropout1": 1, "1.attention.dropout1": 1} == inside


def test_dropout_of_fused_attention_keeps_it_whole_on_accelerators_alone():
    """Their kernels draw by themselves; on CPUs, the mask of all heads is drawn."""
    model = made("gpt2", dropout=0.1)
    flow = flow_of(model, ((IDS,), {}))
    there, here = (
        reasons(find_plan(model, flow, 2, on_accelerator=each)) for each in (True, False)
    )

    assert "dropout" == there["transformer.h.0.attn.c_attn"]
    assert "transformer.h.0.mlp.c_fc" not in there
    assert {"transformer.wpe": "small"} == here


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_a_plan_leaves_the_model_as_it_was_and_is_the_same_on_meta(name):
    model = made(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}

    plan = plan_of(model)

    assert plan == known(name)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with torch.device("meta"):
        bare = MODELS[name]()
    for module in bare.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert plan == plan_of(bare)


def test_a_wrong_split_is_refuted():
    model = made("gpt2")
    flow = flow_of(model, ((IDS,), {}))
    block = "transformer.h.0.attn"
    region = next(each for each in known("gpt2").regions if each.block == block)
    inner = replace(
        region,
        block="",
        modules=tuple(
            replace(each, name=each.name.removeprefix(f"{block}.")) for each in region.modules
        ),
        attributes=tuple(replace(each, module="") for each in region.attributes),
    )
    whole = WholeBlock(model.get_submodule(block), flow.calls[block])
    fused, row = inner.modules

    one_range = replace(inner, modules=(replace(fused, sections=(3 * WIDTH,)), row))
    other_columns = replace(inner, modules=(fused, replace(row, dims={"weight": 1})))

    assert inner == whole.prove(inner, 2)
    assert "unproved" == whole.prove(one_range, 2).kind
    assert "unproved" == whole.prove(other_columns, 2).kind
    assert "unproved" == whole.prove(replace(inner, attributes=()), 2).kind


class Normed(nn.Module):
    """A norm between two products, which needs the whole row."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return self.b(self.norm(self.a(x)))


def test_a_model_without_a_split_is_refused():
    with pytest.raises(OptionError) as caught:
        plan_of(Normed(), arguments=(torch.randn(2, 8),))

    assert [("tensor_parallel_degree", "no_split")] == fields_of(caught.value)


def test_the_script_chooses_modules():
    model = made("mlp")
    smp.set_tensor_parallelism(model.up, False)
    kept = plan_of(model)
    only = made("mlp")
    smp.set_tensor_parallelism(only.up)
    smp.set_tensor_parallelism(only.down)

    assert ("by_hand", "by_hand") == tuple(reasons(kept)[name] for name in ("up", "down"))
    assert "out" in roles(kept)
    assert {"up": "column", "down": "row"} == roles(plan_of(only))


def test_modules_made_in_a_block_are_chosen():
    with smp.tensor_parallelism():
        first = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)]
    model = nn.Sequential(*first, nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    plan = plan_of(model, arguments=(torch.randn(2, 8),))

    assert {"0": "column", "2": "row"} == roles(plan)
    assert {"3": "by_hand", "5": "by_hand"} == reasons(plan)


PAIR = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def test_a_plan_of_torch_chooses_modules_and_their_styles():
    """As for torch's own function; the parts are proved, and nothing else is split."""
    model, llama = made("mlp"), made("llama")
    smp.parallelize_module(model, {**PAIR, "table": RowwiseParallel(input_layouts=Replicate())})
    smp.parallelize_module(model.head, ColwiseParallel(output_layouts=Replicate()))
    layer = {"*_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    smp.parallelize_module(
        llama, {f"model.layers.*.mlp.{name}": style for name, style in layer.items()}
    )
    splits = roles(plan_of(llama))

    assert {"up": "column", "down": "row", "table": "vocabulary", "head": "joined"} == roles(
        plan_of(model)
    )
    assert {"gate_proj", "up_proj", "down_proj"} == {name.rpartition(".")[2] for name in splits}
    assert len(splits) == 3 * len(llama.model.layers)


def test_a_module_that_cannot_have_its_style_is_refused():
    turned = made("mlp")
    smp.parallelize_module(turned, {"up": RowwiseParallel(), "down": ColwiseParallel()})
    alone = made("mlp")
    smp.parallelize_module(alone, {**PAIR, "out": RowwiseParallel()})

    first = made("mlp")
    smp.parallelize_module(first.up, ColwiseParallel())

    for model, names in ((turned, ["up", "down"]), (alone, ["out"]), (first, ["up"])):
        with pytest.raises(OptionError) as caught:
            plan_of(model)
        assert [(name, "not_split") for name in names] == fields_of(caught.value)


def test_faults_of_a_plan_of_torch_are_reported_together():
    plan = {
        "upp": ColwiseParallel(),
        "up": SequenceParallel(),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "table": ColwiseParallel(),
        "out": "rowwise",
    }
    model = made("mlp")
    with pytest.raises(OptionError) as caught:
        smp.parallelize_module(model, plan)
    with pytest.raises(OptionError) as empty:
        smp.parallelize_module(model, {})

    assert [
        ("upp", "unknown"),
        *((name, "unsupported") for name in ("up", "down", "table", "out")),
    ] == fields_of(caught.value)
    assert [("parallelize_plan", "invalid")] == fields_of(empty.value)
    assert "out" in roles(plan_of(model))  # nothing was chosen


def test_options_of_layers_of_smp_are_refused():
    with (
        pytest.raises(OptionError) as caught,
        smp.tensor_parallelism(fused_softmax=True, use_alibi=1),
    ):
        pass

    assert [("fused_softmax", "unsupported"), ("use_alibi", "unsupported")] == fields_of(
        caught.value
    )


@pytest.mark.parametrize("name", list(MODELS))
def test_parts_are_those_of_the_whole_model(name):
    model, parts = made(name), [made(name) for _ in range(2)]
    plan = known(name)
    for rank, part in enumerate(parts):
        split_model(part, plan, AloneOf(2, rank))
    found = [dict(part.named_parameters()) for part in parts]

    split_ones = 0
    for key, value in model.named_parameters():
        split = split_of(found[0][key])
        if split is None:
            assert torch.equal(value, found[1][key])
        else:
            split_ones += value.numel()
            assert torch.equal(value, split.joined([of_rank[key] for of_rank in found]))
    assert plan.num_split == split_ones
    assert split_ones > plan.num_elements / 2


def test_sections_are_split_one_by_one():
    split = TensorSplit(dim=0, sections=(4, 4), degree=2, rank=1)
    whole = torch.arange(8)

    assert [2, 3, 6, 7] == split.part(whole).tolist()
    assert (8,) == tuple(split.whole_shape(split.part(whole)))


def test_the_summary_says_what_stays_whole():
    text = known("gpt2").summary()

    assert "are split over 2 ranks" in text
    assert "whole: transformer.wpe: it has few rows, so a split saves little" in text
