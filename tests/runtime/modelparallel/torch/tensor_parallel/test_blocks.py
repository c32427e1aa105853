# SPDX-License-Identifier: Apache-2.0
"""Layouts that are found for kinds of blocks, each proved by the numbers of the whole block."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from smdist.modelparallel.torch.tensor_parallel import find
from smdist.modelparallel.torch.tensor_parallel.data_flow import flow_of
from smdist.modelparallel.torch.tensor_parallel.search import find_plan
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import SimulatedRanks
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model

WIDTH, HEADS, FEWER, HEAD = 16, 4, 2, 4


def plan_of(model, x=None, degree=2):
    x = torch.randn(2, 3, WIDTH) if x is None else x
    return find(model, ((x,), {}), degree)


def splits(plan):
    return {
        (each.name, key): (each.role.value, dim, each.sections)
        for each in plan.modules
        for key, dim in each.dims.items()
    }


def attended(query, key, value):
    """Return attention over heads in the dimension before the last."""
    found = functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value))
    )
    return found.transpose(1, 2).flatten(2)


class Grouped(nn.Module):
    """Attention with q, k and v in one product, and fewer heads of keys than of queries."""

    def __init__(self, sizes_as_list):
        super().__init__()
        self.lengths = [HEADS * HEAD, FEWER * HEAD, FEWER * HEAD] if sizes_as_list else None
        self.num_heads, self.num_kv_heads = HEADS, FEWER
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * FEWER) * HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH)

    def forward(self, x):
        sizes = self.lengths or [self.num_heads * HEAD, *[self.num_kv_heads * HEAD] * 2]
        q, k, v = (each.unflatten(-1, (-1, HEAD)) for each in self.qkv(x).split(sizes, -1))
        k, v = (each.repeat_interleave(HEADS // FEWER, 2) for each in (k, v))
        return self.out(attended(q, k, v))


@pytest.mark.parametrize("sizes_as_list", [False, True])
def test_sections_of_a_fused_product_may_be_unequal(sizes_as_list):
    found = splits(plan_of(Grouped(sizes_as_list)))

    sections = (HEADS * HEAD, FEWER * HEAD, FEWER * HEAD)
    assert ("column", 0, sections) == found["qkv", "weight"]
    assert ("row", 1, (HEADS * HEAD,)) == found["out", "weight"]


class Normed(nn.Module):
    """Attention with a norm of each head, a sink for each head, and dropout of its weights."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.num_heads, self.rate = HEADS, rate
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(HEAD)
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, HEAD)) for each in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", self.norm(q), k)
        sinks = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        weights = functional.dropout(weights, self.rate, self.training)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)), weights


class Whole(nn.Module):
    """Model around one attention, which uses its first output, or both."""

    def __init__(self, inner, uses_both=False):
        super().__init__()
        self.inner, self.uses_both = inner, uses_both

    def forward(self, x):
        found, weights = self.inner(x)
        return (x + found, weights) if self.uses_both else x + found


def values(plan, name):
    """Return the values of one module that pass between its region and what is outside."""
    return next(each.values for each in plan.modules if each.name == name and each.values.dropped)


def test_parameters_of_heads_are_split_and_gradients_of_their_norm_are_summed():
    plan = plan_of(Whole(Normed()))
    found = splits(plan)

    assert ("part", 0, (HEADS,)) == found["inner", "sinks"]
    assert [("weight",)] == [m.values.summed for m in plan.modules if m.name == "inner.norm"]
    assert (1,) == values(plan, "inner").dropped  # nobody uses the weights of attention


def test_an_output_that_is_a_part_and_is_used_is_joined():
    plan = plan_of(Whole(Normed(), uses_both=True))

    (inner,) = (each.values for each in plan.modules if each.values.joined)
    assert ((1, 1),) == inner.joined
    assert () == inner.dropped


def test_calls_of_dropout_in_a_region_are_split():
    plan = plan_of(Whole(Normed(rate=0.5)))

    assert ((0, 1),) == values(plan, "inner").dropouts


class Latent(nn.Module):
    """Attention whose keys and values come from a narrow product, part of which all heads use."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.narrow = nn.Linear(WIDTH, 6 + HEAD)
        self.norm = nn.LayerNorm(6)
        self.wide = nn.Linear(6, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        latent, shared = self.narrow(x).split([6, HEAD], -1)
        k, v = self.wide(self.norm(latent)).unflatten(-1, (-1, 2 * HEAD)).chunk(2, -1)
        k = k + shared.unsqueeze(2)
        return self.out(attended(self.q(x).unflatten(-1, (-1, HEAD)), k, v))


def test_a_product_that_all_heads_use_stays_whole_and_its_gradients_are_summed():
    plan = plan_of(Latent())

    assert {"q", "wide", "out"} == {name for name, _ in splits(plan)}
    assert {"narrow": "replicated"} == {each.module: each.kind for each in plan.whole}
    summed = {m.name: m.values.summed for m in plan.modules if m.values.summed}
    assert {"narrow": ("weight", "bias"), "norm": ("weight", "bias")} == summed


class Scan(nn.Module):
    """State space: a product of its channels, whose sum all channels use."""

    def __init__(self, channels=24):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * channels)
        self.inner = nn.Linear(channels, 5, bias=False)
        self.decay = nn.Parameter(torch.zeros(channels, 5))
        self.down = nn.Linear(channels, WIDTH)

    def forward(self, x):
        state, gate = self.up(x).chunk(2, -1)
        return self.down((self.inner(state) @ self.decay.exp().t()) * gate.sigmoid())


def test_the_sum_of_a_row_may_go_on_inside_of_a_region():
    found = splits(plan_of(Scan()))

    assert {
        ("up", "weight"): ("column", 0, (24, 24)),
        ("up", "bias"): ("column", 0, (24, 24)),
        ("inner", "weight"): ("inner", 1, (24,)),
        ("down", "weight"): ("row", 1, (24,)),
        ("", "decay"): ("part", 0, (24,)),
    } == found


class Experts(nn.Module):
    """Stacked experts with biases, all of which see each token."""

    def __init__(self, gated, hidden=12):
        super().__init__()
        wide = 2 * hidden if gated else hidden
        self.up, self.up_bias = _parameter(3, WIDTH, wide), _parameter(3, wide)
        self.down, self.down_bias = _parameter(3, hidden, WIDTH), _parameter(3, WIDTH)
        self.gated = gated

    def forward(self, x, weights):
        x = torch.einsum("bsi,eih->besh", x, self.up) + self.up_bias[:, None]
        gate, x = x.chunk(2, -1) if self.gated else (x, torch.ones_like(x))
        x = torch.einsum("besh,eho->beso", x * gate.tanh(), self.down) + self.down_bias[:, None]
        return torch.einsum("beso,bse->bso", x, weights)


class Routed(nn.Module):
    """Experts, whose outputs are weighted by a router."""

    def __init__(self, gated):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), Experts(gated)

    def forward(self, x):
        return self.experts(x, self.router(x).softmax(-1))


def _parameter(*shape):
    return nn.Parameter(torch.randn(shape))


@pytest.mark.parametrize("gated", [False, True])
def test_stacked_experts_are_split_by_their_hidden_width(gated):
    plan = plan_of(Routed(gated))
    sections = (12, 12) if gated else (12,)
    border = next(each for each in plan.modules if each.role.value == "experts")

    assert {
        ("experts", "up"): ("part", 2, sections),
        ("experts", "up_bias"): ("part", 1, sections),
        ("experts", "down"): ("part", 1, (12,)),
    } == splits(plan)
    assert ("down_bias",) == border.values.first


class Biased(nn.Module):
    """Attention with a bias for each head, from outside."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, bias):
        q, k, v = (each(x).unflatten(-1, (-1, HEAD)) for each in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) + bias
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))


class WithBias(nn.Module):
    """Two layers of attention that share a bias."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Biased(), Biased()])
        self.bias = nn.Parameter(torch.randn(1, HEADS, 1, 1))

    def forward(self, x):
        bias = self.bias.expand(1, HEADS, x.shape[1], x.shape[1])
        for layer in self.layers:
            x = x + layer(x, bias)
        return x


def test_an_input_with_a_dimension_of_heads_is_narrowed():
    plan = plan_of(WithBias())
    narrowed = {m.name: m.values.narrowed for m in plan.modules if m.values.narrowed}

    assert {"layers.0": ((1, 1),), "layers.1": ((1, 1),)} == narrowed


class Language(nn.Module):
    """Body of a language model, with a residual connection from its table to its head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(32, 8), nn.Linear(8, 40)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, ids):
        x = self.table(ids)
        return self.head(x + self.down(self.up(x).relu()))


def test_a_head_that_reads_a_residual_connection_is_split_alone():
    plan = plan_of(nn.Sequential(Language()), torch.arange(32).view(4, 8))

    assert {"0.table", "0.up", "0.down", "0.head"} == {name for name, _ in splits(plan)}


class Deciding(nn.Module):
    """Model that reads a value in its forward pass."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).relu()) if x.sum() > -1e9 else x


def test_a_model_that_reads_values_runs_with_them():
    model = Deciding()
    before = torch.get_rng_state()

    assert {"up", "down"} == {name for name, _ in splits(plan_of(model, torch.ones(2, 3, WIDTH)))}
    assert torch.equal(before, torch.get_rng_state())


class Scaled(nn.Embedding):
    """Embedding whose forward function calls that of its class."""

    def forward(self, ids):
        return super().forward(ids) * 3.0


class Own(nn.Embedding):
    """Embedding whose forward function reads the whole weight."""

    def forward(self, ids):
        return self.weight[ids]


def test_an_embedding_of_another_class_is_split_if_that_is_right():
    ids = torch.arange(64).view(4, 16)
    scaled = nn.Sequential(Scaled(64, 8), nn.LayerNorm(8), nn.Linear(8, 32))

    assert ("vocabulary", 0, (64,)) == splits(plan_of(scaled, ids))["0", "weight"]
    own = nn.Sequential(Own(64, 8), nn.LayerNorm(8), nn.Linear(8, 32))
    assert {"0": "unproved"} == {e.module: e.kind for e in plan_of(own, ids).whole}


class OnlySingle(nn.Module):
    """MLP that does not run in float64."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        if x.dtype is torch.float64:
            raise NotImplementedError
        return self.down(self.up(x).relu())


def test_a_block_that_does_not_run_in_float64_is_proved_in_float32():
    x = torch.randn(2, WIDTH)

    assert {"up", "down"} == {name for name, _ in splits(plan_of(OnlySingle(), x))}


class Crossed(nn.Module):
    """Attention of torch to another sequence, with a mask, whose weights are used, too."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **options)

    def forward(self, x):
        length = x.shape[1 if self.attention.batch_first else 0]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        found, weights = self.attention(x, 2 * x, x.tanh(), attn_mask=hidden)
        return found, weights


@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {}, {"bias": False}, {"dropout": 0.1, "batch_first": True}]
)
def test_attention_of_torch_is_split_by_heads(options):
    x = torch.randn(2, 3, WIDTH) if options.get("batch_first") else torch.randn(3, 2, WIDTH)
    found = splits(plan_of(Crossed(**options), x))

    assert ("attention", 0, (WIDTH,) * 3) == found["attention", "in_proj_weight"]
    assert ("part", 1, (WIDTH,)) == found["attention.out_proj", "weight"]


def test_attention_of_torch_with_products_apart_is_split():
    class Narrow(Crossed):
        def forward(self, x):
            return self.attention(x, x[..., :6], x[..., :8], need_weights=False)[0]

    found = splits(plan_of(Narrow(kdim=6, vdim=8)))

    assert ("attention", 0, (WIDTH,)) == found["attention", "k_proj_weight"]
    assert ("part", 0, (WIDTH,) * 3) == found["attention", "in_proj_bias"]


@pytest.mark.parametrize(
    ("options", "on_accelerator", "kind"),
    [({"dropout": 0.1}, True, "dropout"), ({"add_zero_attn": True}, False, "unproved")],
)
def test_attention_of_torch_with_some_options_stays_whole(options, on_accelerator, kind):
    class WithMlp(Crossed):
        def forward(self, x):
            return self.mlp(super().forward(x)[0])

    model = WithMlp(**options)
    model.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH))

    flow = flow_of(model, ((torch.randn(2, 3, WIDTH),), {}))
    plan = find_plan(model, flow, 2, on_accelerator=on_accelerator)

    assert kind == {each.module: each.kind for each in plan.whole}["attention"]


def test_an_encoder_of_torch_computes_its_parts_in_evaluation():
    """It would pass parts of weights to one fused function otherwise, without a sum over ranks."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).double()
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    plan = plan_of(model, x)
    ranks = SimulatedRanks(2)
    copies = [deepcopy(model) for _ in range(2)]

    def run(rank):
        split_model(copies[rank], plan, ranks.peers(rank))
        with torch.no_grad():
            return copies[rank].eval()(x)

    with torch.no_grad():
        whole = model.eval()(x)
    assert {"linear1", "linear2", "self_attn", "out_proj"} == {
        name.rpartition(".")[2] for name, _ in splits(plan)
    }
    for found in ranks.run(run):
        assert (found - whole).abs().max() < 1e-12
