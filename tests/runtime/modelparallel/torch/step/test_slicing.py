# SPDX-License-Identifier: Apache-2.0
"""Inputs of a step are cut as SMP v1 documents it."""

from argparse import Namespace
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.torch.smp.step_decorator import Slicing

ROWS = torch.arange(12).reshape(6, 2)
Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    x: torch.Tensor
    name: str = "a"


class Sliced:
    def smp_slice(self, num_mb, mb, axis):
        return ("slice", num_mb, mb, axis)


def function(model: Any, data: Any, other: Any = None) -> None:
    """Never called."""


def cut(*args, number=3, slicing=None, **kwargs):
    return (slicing or Slicing()).cut(function, (args, kwargs), number)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (ROWS, lambda found: found),
        ([ROWS, 1], lambda found: found[0]),
        ((ROWS,), lambda found: found[0]),
        (Pair(ROWS, None), lambda found: found.left),
        ({"a": {"b": ROWS}}, lambda found: found["a"]["b"]),
        ({ROWS}, lambda found: next(iter(found))),
        (Batch(ROWS), lambda found: found.x),
    ],
)
def test_tensors_in_containers_are_cut_along_dimension_0(data, read):
    pieces = cut("model", data)

    assert [ROWS[at : at + 2].tolist() for at in (0, 2, 4)] == [
        read(args[1]).tolist() for args, _ in pieces
    ]
    assert all(type(args[1]) is type(data) for args, _ in pieces)


def test_what_is_no_tensor_is_passed_whole():
    whole = [Namespace(rate=1), torch.tensor(3.0), "text", {"k": 1}, [1, 2]]

    pieces = cut("model", whole)

    for args, _ in pieces:
        assert all(a is b for a, b in zip(args[1], whole, strict=True))


def test_named_inputs_are_whole_or_cut_along_another_axis():
    slicing = Slicing(whole=frozenset({"data"}), axes={"other": 1})

    pieces = cut("model", ROWS, other=ROWS, number=2, slicing=slicing)

    assert [ROWS.tolist()] * 2 == [args[1].tolist() for args, _ in pieces]
    assert [[[0], [2], [4], [6], [8], [10]], [[1], [3], [5], [7], [9], [11]]] == [
        kwargs["other"].tolist() for _, kwargs in pieces
    ]


def test_objects_cut_themselves():
    pieces = cut("model", Sliced(), slicing=Slicing(axes={"data": 2}))

    assert [("slice", 3, at, 2) for at in range(3)] == [args[1] for args, _ in pieces]


def test_all_tensors_that_cannot_be_cut_are_named_with_what_would_do():
    with pytest.raises(OptionErrors) as caught:
        cut("model", {"x": ROWS, "y": ROWS[:5]}, ROWS[:, 0], number=4)

    faults = caught.value.faults

    assert [("data['x']",), ("data['y']",), ("other",)] == [each.about for each in faults]
    assert (
        "\"data['y']\" has 5 samples: they cannot be split into 4 equal microbatches. "
        "Drop the last batch (drop_last=True) or pad it. Numbers of microbatches that fit: 1, 5."
    ) == str(faults[1])


def test_an_axis_that_a_tensor_has_not_is_named():
    with pytest.raises(OptionError) as caught:
        cut("model", ROWS, slicing=Slicing(axes={"data": 2}))

    assert ("data",) == caught.value.about


def test_names_that_the_function_has_not_are_refused():
    with pytest.raises(OptionError) as caught:
        Slicing(whole=frozenset({"dat"})).check(function)

    assert (("dat",), "unknown") == (caught.value.about, caught.value.kind)


def test_the_size_is_that_of_what_is_cut_first():
    assert 6 == Slicing().size(function, (("model", [Sliced(), ROWS]), {}))
    assert 0 == Slicing().size(function, (("model", Sliced()), {}))
    with pytest.raises(OptionError) as caught:
        Slicing().size(function, (("model", "loader"), {}))

    assert "no_tensor" == caught.value.kind
