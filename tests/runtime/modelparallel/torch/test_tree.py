# SPDX-License-Identifier: Apache-2.0
"""Nested data goes to leaves and back unchanged."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from smdist.modelparallel.torch.program.pytree import flatten, map_leaves, paths, unflatten

ONE = torch.ones(1)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Record:
    hidden: Any
    name: str = "r"


@dataclass
class Settings:
    size: int = 3


@pytest.mark.parametrize(
    "data",
    [
        ONE,
        None,
        (ONE, [2, {"a": ONE}]),
        {"a": ONE, "b": {"c": None}},
        OrderedDict(b=ONE, a=1),
        Pair(ONE, (1, 2)),
        Record(ONE),
        slice(ONE, None, 2),
        torch.Size([1, 2]),
        torch.max(torch.ones(2, 2), dim=0),
        (),
        {},
    ],
)
def test_what_was_flattened_is_built_again(data):
    leaves, form = flatten(data)

    again = unflatten(form, leaves)

    assert type(data) is type(again)
    assert form == flatten(again)[1]
    assert all(a is b for a, b in zip(leaves, flatten(again)[0], strict=True))
    assert len(leaves) == form.num_leaves


def test_an_object_without_tensors_stays_itself():
    settings = Settings()

    leaves, _ = flatten((settings, torch.Size([3])))

    assert settings is leaves[0]
    assert torch.Size([3]) == leaves[1]


def test_a_default_dict_keeps_its_items():
    data = defaultdict(list, {"a": ONE})

    again = map_leaves(lambda leaf: leaf, data)

    assert {"a": ONE} == again


def test_leaves_are_named_by_their_place():
    _, form = flatten({"batch": {"x": ONE}, "masks": (ONE, None), "r": Record(ONE)})

    assert ["batch.x", "masks.0", "masks.1", "r.hidden", "r.name"] == list(paths(form))


def test_outputs_of_transformers_are_built_again():
    from transformers.modeling_outputs import CausalLMOutput

    output = CausalLMOutput(loss=ONE, logits=ONE * 2)

    leaves, form = flatten(output)

    assert 2 == len(leaves)
    assert output.to_tuple() == unflatten(form, leaves).to_tuple()
    assert unflatten(form, leaves).hidden_states is None
