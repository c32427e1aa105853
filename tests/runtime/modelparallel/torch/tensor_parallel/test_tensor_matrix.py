# SPDX-License-Identifier: Apache-2.0
"""A planned sample of `make tensor-matrix`: split layers train as one process does.

Each way of splitting that the fifteen models have is in the everyday part once.
"""

import pytest
import zoo
from error_fields import fields_of
from tensor_matrix import TensorCase, alone, compared

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.tensor_parallel import find

STEPS = 3
SAMPLE = (
    TensorCase(model="gpt_oss", stages=2, dropout=0.1),
    TensorCase(model="qwen3_moe", replicas=2, optimizer="adamw"),
    TensorCase(model="deepseek_v3"),
    TensorCase(model="mamba"),
    TensorCase(model="t5"),
)
MORE = (
    TensorCase(model="gemma3", tensor=4),
    TensorCase(model="mixtral", stages=2),
    TensorCase(model="dyn", stages=2),
    TensorCase(model="bert", tensor=4),
    TensorCase(model="t5", stages=2),
    TensorCase(model="deepseek_v3", stages=2, replicas=2),
    TensorCase(model="mamba", stages=2, replicas=2),
)
REFUSED = ("resnet",)


@pytest.mark.parametrize(
    "case",
    [*SAMPLE, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)],
    ids=str,
)
def test_split_layers_train_as_one_process_does(world, case):
    found = compared(world, case, alone(case, STEPS))

    assert 1e-5 >= found.gradient, found
    assert {"sgd": 1e-5, "adamw": 1e-3}[case.optimizer] >= found.loss, found
    assert 0.5 < found.share, found


def arguments_of(batch):
    return ((), batch) if isinstance(batch, dict) else (batch, {})


@pytest.mark.slow
@pytest.mark.parametrize("degree", [2, 4])
def test_more_than_half_of_at_least_12_models_is_split(degree):
    shares = {}
    for name in set(zoo.FIFTEEN) - set(REFUSED):
        specimen = zoo.even(name)
        plan = find(specimen.model, arguments_of(specimen.batch), degree)
        shares[name] = plan.num_split / plan.num_elements

    assert 12 <= sum(share > 0.5 for share in shares.values())


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_of_convolutions_is_refused(name):
    specimen = zoo.even(name)
    with pytest.raises(OptionError) as caught:
        find(specimen.model, arguments_of(specimen.batch), 2)

    assert [("tensor_parallel_degree", "no_split")] == fields_of(caught.value)
