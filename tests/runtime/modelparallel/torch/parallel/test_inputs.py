# SPDX-License-Identifier: Apache-2.0
"""Batches of other lengths and sizes, keywords, evaluation, frozen parts: all between steps."""

import pytest
import torch
import zoo
from smp_nets import batch, gradients, loss_of, net, start, train_step
from torch import nn

import smdist.modelparallel.torch as smp


def lengths(rank, size):
    start(size, microbatches=2)
    specimen, plain = zoo.tiny("gpt2", rows=4), zoo.tiny("gpt2", rows=4).model
    model = smp.DistributedModel(specimen.model, trace_device="cpu")  # measures nothing

    @smp.step
    def train(model, batch):
        loss = model(**batch).loss
        model.backward(loss)
        return loss

    differences = []
    for length in (12, 7, 12):
        data = {key: value[:, :length] for key, value in specimen.batch.items()}
        halves = ({k: v[at : at + 2] for k, v in data.items()} for at in (0, 2))
        expected = sum(plain(**half).loss.item() for half in halves) / 2
        differences.append(abs(train(model, data).reduce_mean().item() - expected))
    return differences


def test_sequences_of_other_lengths_are_taken_in_any_order(world):
    for differences in world.run(lengths, size=2):
        assert max(differences) < 1e-5


def mixed(rank, size):
    """A smaller batch, keywords, an input passed whole, evaluation and freezing."""
    start(size)
    model, plain = smp.DistributedModel(net()), net()
    x, y = batch()

    @smp.step(non_split_inputs=["extra"], detach_outputs=False)
    def keywords(model, x, y, *, extra):
        output = model(x, scale=2.0, extra=extra)
        loss = nn.functional.cross_entropy(output["logits"], y)
        model.backward(loss)
        return {"loss": loss, "output": output, "text": "a"}

    found = {}
    model.eval()
    with torch.no_grad():
        found["first"] = model(x)["logits"], plain(x)["logits"]
    model.train()
    found["small"] = train_step(model, x[:4], y[:4]).reduce_mean(), loss_of(plain, x[:4], y[:4])
    extra = torch.ones(2, 8)
    result = keywords(model, x, y, extra=extra)
    parts = [plain(each, 2.0, extra=extra)["logits"] for each in x.chunk(4)]
    found["keywords"] = result["output"]["logits"].concat(), torch.cat(parts)
    assert result["output"]["width"] == [8] * 4
    assert result["text"] == ["a"] * 4
    found["evaluate"] = model.evaluate((x[:6],))["logits"], plain(x[:6])["logits"]
    given = model.evaluate(
        (x,), lambda o, t: nn.functional.cross_entropy(o["logits"], t), targets=y
    )
    found["loss"] = given, loss_of(plain, x, y)
    with torch.inference_mode():
        found["inference"] = model(x)["logits"], plain(x)["logits"]
    for part in (model, plain):
        part.zero_grad()
    model.module.layers[5].requires_grad_(False)
    train_step(model, x, y)
    frozen = [name for name in gradients(model) if name.startswith("layers.5")]
    return {key: [t.detach().clone() for t in pair] for key, pair in found.items()}, frozen


def test_whatever_comes_between_steps_gives_the_models_own_numbers(world):
    for found, frozen in world.run(mixed, size=2):
        assert [] == frozen
        for ours, plain in found.values():
            assert torch.allclose(plain, ours, atol=1e-5)


def uneven(rank, size):
    start(2)
    model = smp.DistributedModel(net())
    train_step(model, *batch())
    with torch.no_grad():
        for _ in range(1 + 2 * smp.dp_rank()):
            model(batch()[0])
    return train_step(model, *batch()).reduce_mean().item()


def test_replicas_may_evaluate_on_different_numbers_of_batches(world):
    assert 1 == len(set(world.run(uneven, size=4)))


def traced(rank, size):
    start(size)
    model = smp.DistributedModel(net())
    train_step(model, *batch())
    with model.traced() as trace:
        train_step(model, *batch())
    train_step(model, *batch())
    return [event.kind for event in trace.gather().tracks[rank].events]


def test_what_ranks_do_can_be_recorded(world):
    for kinds in world.run(traced, size=2):
        assert 4 == kinds.count("F") == kinds.count("B")


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_without_values_gets_the_same_under_every_layout(world, size):
    (expected,) = world.run(bare, size=1)

    assert all(expected == each for each in world.run(bare, size=size))


def bare(rank, size):
    start(size)
    with smp.delay_param_initialization():
        raw = net()
    return train_step(smp.DistributedModel(raw), *batch()).reduce_mean().item()
