# SPDX-License-Identifier: Apache-2.0
"""Results of a step: tensors by microbatch, nested as the function returned them."""

import pytest
import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.parallel.step_function import StepOutput, gathered

PARTS = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]


def test_microbatches_are_reduced_joined_and_stacked():
    output = StepOutput(PARTS)

    assert [2.0, 4.0] == output.reduce_mean().tolist()
    assert [4.0, 8.0] == output.reduce_sum().tolist()
    assert [1.0, 2.0, 3.0, 6.0] == output.concat().tolist()
    assert [[1.0, 2.0], [3.0, 6.0]] == output.stack().tolist()


def test_numbers_are_joined_too():
    output = StepOutput([torch.tensor(1.0), torch.tensor(3.0)])

    assert [1.0, 3.0] == output.concat().tolist()
    assert 2.0 == output.reduce_mean()


def test_it_is_a_sequence():
    output = StepOutput(PARTS)

    assert 2 == len(output)
    assert output[1] is PARTS[1]
    assert PARTS == list(output) == output.outputs


def test_it_is_no_number():
    output = StepOutput([torch.tensor(1.0), torch.tensor(3.0)])

    for use in (float, StepOutput.item, "{:.3f}".format):
        with pytest.raises(OptionError) as caught:
            use(output)

        assert "not_a_number" == caught.value.kind
    assert f"{output}" == repr(output)


def test_other_shapes_can_be_joined_alone():
    output = StepOutput([torch.ones(1, 2), torch.ones(2, 2)])

    assert (3, 2) == output.concat().shape
    with pytest.raises(OptionError) as caught:
        output.stack()

    assert "shapes" == caught.value.kind


def test_nested_results_keep_their_form():
    found = gathered([{"a": (each, 3), "b": None, "c": "t"} for each in PARTS])

    assert PARTS == found["a"][0].outputs
    assert [3, 3] == found["a"][1]
    assert found["b"] is None
    assert ["t", "t"] == found["c"]


def test_one_value_is_one_output():
    assert PARTS == gathered(PARTS).outputs
    assert [1.5, 2.5] == gathered([1.5, 2.5])
    assert gathered([None, None]) is None


def test_results_of_several_forms_come_as_they_are():
    assert [1, (1, 2)] == gathered([1, (1, 2)])
