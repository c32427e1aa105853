# SPDX-License-Identifier: Apache-2.0
"""A planned sample of `make pipeline-matrix`: pipelines compute what one process computes.

Each model, each schedule, each number of ranks and each way of sharing parameters is in it.
"""

from functools import cache

import pytest
import torch
import zoo
from matrix import Case, alone, compared
from matrix.compare import difference
from matrix.one_process import Run

STEPS = 4
SAMPLE = (
    Case(model="gpt2", ranks=4, schedule="interleaved"),
    Case(model="llama", ranks=3, schedule="1f1b"),
    Case(model="bert", ranks=2, schedule="interleaved_1f1b", virtual_stages=2),
    Case(model="t5", ranks=2, schedule="zero_bubble_v", virtual_stages=2),
    Case(model="vit", ranks=3, schedule="interleaved_1f1b", virtual_stages=2),
    Case(model="resnet", ranks=4, schedule="1f1b"),
    Case(model="unet", ranks=4, schedule="interleaved"),
    Case(model="dyn", ranks=4, schedule="interleaved_1f1b", virtual_stages=2),
    Case(model="mixtral", ranks=2, schedule="interleaved"),
    Case(model="whisper", ranks=3, schedule="zero_bubble_v", virtual_stages=2),
    Case(model="gpt2", ranks=2, schedule="interleaved", replicas=2),
    Case(model="bert", ranks=2, schedule="interleaved", replicas=2, sharding="optimizer"),
    Case(model="llama", ranks=2, schedule="1f1b", replicas=2, sharding="full"),
)


@cache
def one_process(model):
    """Run on one thread, as ranks do, since several threads add in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return alone(model, STEPS)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_pipeline_trains_as_one_process_does(world, case):
    """Gradients of the first step to 1e-6 of their norm, the losses of all steps to 1e-5."""
    found = compared(world, case, one_process(case.model))

    assert 1e-6 >= found.gradient, found
    assert 1e-5 >= found.loss, found


def test_the_sample_has_every_model():
    assert set(zoo.TEN) == {case.model for case in SAMPLE}


def test_another_seed_of_dropout_is_seen():
    """The comparison tells runs apart that differ in a fifth of one loss's thousandth."""
    run = one_process("dyn")
    other = Run(gradients=run.gradients, losses=(run.losses[0] * 1.0002, *run.losses[1:]))

    assert 1e-5 < difference(run, other).loss
    assert 0.0 == difference(run, run).loss == difference(run, run).gradient
