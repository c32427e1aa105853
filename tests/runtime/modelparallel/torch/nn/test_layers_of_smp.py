# SPDX-License-Identifier: Apache-2.0
"""Layers of SMP v1 compute what the Transformer of torch computes with the same weights."""

import pytest
import torch
from error_fields import fields_of
from tensor_models import alone, split, start, train, worst
from torch import nn
from torch.nn import functional

import smdist.modelparallel.torch as smp
from sagemaker_dist.errors import OptionError

WIDTH, HEADS, MIDDLE, LENGTH = 16, 4, 24, 5
SIZES = {
    "num_attention_heads": HEADS,
    "attention_head_size": WIDTH // HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": MIDDLE,
    "attention_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
TORCH = {
    "d_model": WIDTH,
    "nhead": HEADS,
    "dim_feedforward": MIDDLE,
    "dropout": 0.0,
    "batch_first": True,
    "dtype": torch.float64,
}


def copy_attention(theirs, ours):
    for number, name in enumerate(("query", "key", "value")):
        rows = slice(number * WIDTH, (number + 1) * WIDTH)
        layer = getattr(ours, name)
        layer.weight.data, layer.bias.data = theirs.in_proj_weight[rows], theirs.in_proj_bias[rows]
    ours.dense.load_state_dict(theirs.out_proj.state_dict())


def copy_norm(theirs, ours, is_first):
    """Copy a normalization, whose values are made random first."""
    nn.init.normal_(theirs.weight)
    (ours.pre_layernorm if is_first else ours.layernorm).load_state_dict(theirs.state_dict())


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_layer_is_that_of_torch(activation, is_first):
    """The mask is added to the scores, and a causal mask hides later positions."""
    theirs = nn.TransformerEncoderLayer(**TORCH, activation=activation, norm_first=is_first)
    norms = {"pre_layernorm": is_first, "post_layernorm": not is_first, "causal_mask_size": 8}
    ours = smp.nn.DistributedTransformerLayer(**SIZES, **norms, activation=activation).double()
    copy_attention(theirs.self_attn, ours.attention)
    ours.output.dense1.load_state_dict(theirs.linear1.state_dict())
    ours.output.dense2.load_state_dict(theirs.linear2.state_dict())
    for norm, part in ((theirs.norm1, ours.attention), (theirs.norm2, ours.output)):
        copy_norm(norm, part, is_first)
    x, hidden = numbers(2, LENGTH, WIDTH), torch.zeros(2, LENGTH, dtype=torch.bool)
    hidden[0, -1] = True
    mask = hidden[:, None, None].double() * torch.finfo(torch.float64).min

    found, same = ours((x, mask))
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = theirs(x, src_mask=later, src_key_padding_mask=hidden)

    assert same is mask
    torch.testing.assert_close(found, expected)


def test_cross_attention_is_that_of_torch():
    theirs = nn.TransformerDecoderLayer(**TORCH, activation="gelu")
    ours = smp.nn.DistributedTransformerLayer(**SIZES, add_cross_attention=True).double()
    copy_attention(theirs.self_attn, ours.attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    ours.output.dense1.load_state_dict(theirs.linear1.state_dict())
    ours.output.dense2.load_state_dict(theirs.linear2.state_dict())
    parts = (ours.attention, ours.cross_attention, ours.output)
    for norm, part in zip((theirs.norm1, theirs.norm2, theirs.norm3), parts, strict=True):
        copy_norm(norm, part, is_first=False)
    x, memory = numbers(2, LENGTH, WIDTH), numbers(2, 3, WIDTH)

    torch.testing.assert_close(ours((x, memory, None, None))[0], theirs(x, memory))


def test_both_normalizations_are_also_around_all_layers():
    norms = {"pre_layernorm": True, "post_layernorm": True}
    model = smp.nn.DistributedTransformer(2, **SIZES, **norms).double()
    x = numbers(2, LENGTH, WIDTH)
    between = (functional.layer_norm(x, [WIDTH]), None)
    for layer in model.seq_layers:
        between = layer(between)

    found, _ = model((x, None))

    torch.testing.assert_close(found, functional.layer_norm(between[0], [WIDTH]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_flash_attention_is_softmax_of_scores(causal, masked):
    qkv = numbers(2, LENGTH, 3, HEADS, 4)
    mask = numbers(2, 1, LENGTH, LENGTH) if masked else None
    layer = smp.nn.FlashAttentionLayer(0.0, scale_attn_by_layer_idx=True, layer_idx=1)
    query, key, value = (qkv[:, :, number].transpose(1, 2) for number in range(3))
    scores = query @ key.mT / 2 / 2 + (mask if masked else 0.0)
    if causal:
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    expected = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    torch.testing.assert_close(layer(qkv, mask, causal), expected)


def test_the_head_is_tied_and_the_loss_is_of_the_next_word():
    model = smp.nn.DistributedTransformerLMHead(
        1, **SIZES, vocab_size=11, num_positions=8, num_token_types=2, causal_mask_size=8
    )
    ids = torch.randint(11, (2, LENGTH))
    loss, scores = model((ids, torch.zeros(2, LENGTH), torch.ones_like(ids), None, ids))

    assert model.lm_head.weight is model.word_embedding.weight
    assert scores.shape == (2, LENGTH, 11)
    expected = functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)


def test_a_masked_word_changes_no_other_position():
    """In the mask of the whole model, 1 is a word that is not attended to."""
    model = smp.nn.DistributedTransformerLMHead(1, **SIZES, vocab_size=11, num_positions=8).double()
    ids, mask = torch.randint(10, (1, LENGTH)), torch.zeros(1, LENGTH)
    mask[0, -1] = 1
    other = ids.clone()
    other[0, -1] = 10

    one, two = (model((each, mask, None, None, None)) for each in (ids, other))

    torch.testing.assert_close(one[:, :-1], two[:, :-1])


def test_normal_initialization_has_its_range():
    layer = smp.nn.DistributedTransformerLayer(use_normal_initialization=True)
    table = smp.nn.DistributedEmbedding(1000, 64, padding_idx=3, initializer_range=0.5)

    assert 0.02 == pytest.approx(layer.output.dense1.weight.std().item(), rel=0.05)
    assert 0 == layer.attention.query.bias.abs().max()
    assert 0.5 == pytest.approx(table.weight.std().item(), rel=0.05)
    assert 0 == table.weight[3].abs().max()


@pytest.mark.parametrize(
    ("make", "about", "kind"),
    [
        (
            lambda: smp.nn.DistributedTransformer(1, **SIZES, post_layernorm=False),
            "post_layernorm",
            "conflict",
        ),
        (
            lambda: smp.nn.DistributedTransformerLayer(**SIZES, use_alibi=True),
            "use_alibi",
            "unsupported",
        ),
        (lambda: smp.nn.DistributedTransformerOutputLayer(activation="silu"), "activation", None),
        (
            lambda: smp.nn.FlashAttentionLayer(scale_attn_by_layer_idx=True),
            "layer_idx",
            "missing",
        ),
        (
            lambda: smp.nn.DistributedEmbedding(2, 2, _skip_allgather=True),
            "_skip_allgather",
            "unsupported",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(make, about, kind):
    with pytest.raises(OptionError) as caught:
        make()

    assert [(about, kind or "option")] == fields_of(caught.value)


def test_names_that_scripts_import():
    """Scripts treat every FusedLayerNorm like one of the model's, and translate state dicts."""
    from smdist.modelparallel.torch.nn.huggingface import gpt2

    state = {"transformer.wte.weight": torch.zeros(1)}

    assert isinstance(nn.LayerNorm(2), smp.nn.FusedLayerNorm)
    assert state is gpt2.translate_hf_state_dict_to_smdistributed_gpt2(state)
    assert state is smp.nn.huggingface.gpt2.translate_state_dict_to_hf_gpt2(state, max_seq_len=8)


def trained(rank, size):
    start(2)
    return train(*split("smp"))


def test_heads_and_mlps_are_split_over_ranks(world):
    """The gradient of a key's bias is 0 but for rounding, so it is left out."""
    one, two = world.run(trained, size=2, deadline=80)
    expected, roles = alone("smp"), dict(one.split)
    names = [name for name in expected.grads if not name.endswith("key.bias")]
    found, wanted = ({name: grads[name] for name in names} for grads in (one.grads, expected.grads))

    assert worst(found, wanted) < 1e-9
    assert one.losses == two.losses == pytest.approx(expected.losses, rel=1e-8)
    for layer in ("transformer.seq_layers.0", "transformer.seq_layers.1"):
        assert "column" == roles[f"{layer}.attention.query"] == roles[f"{layer}.output.dense1"]
        assert "row" == roles[f"{layer}.attention.dense"] == roles[f"{layer}.output.dense2"]
