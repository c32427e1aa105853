# SPDX-License-Identifier: Apache-2.0
"""Fields of errors: those that a class adds, in JSON and after a copy by pickle."""

import pickle

import pytest

from sagemaker_dist.contract.distribution_keys import MODEL, OPTIONS
from sagemaker_dist.errors import JobError, OptionError, closest


def test_a_field_of_a_class_is_kept():
    error = pickle.loads(pickle.dumps(JobError("a", "b", "c", kind="lost", cause={"rank": 3})))

    assert {"rank": 3} == error.cause == error.as_dict()["cause"]
    assert "lost" == error.kind


def test_a_field_with_its_default_is_not_in_json():
    assert {} == JobError("a", "b", "c").cause
    assert {"kind", "about", "what", "why", "hint"} == JobError("a", "b", "c").as_dict().keys()


def test_a_field_that_a_class_does_not_have():
    with pytest.raises(TypeError):
        OptionError("a", "b", "c", cause={})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("pipelines", "pipeline"),
        ("pipeline_parallel", "pipeline_parallel_degree"),
        ("num_microbatches", "microbatches"),
        ("micro_batches", "microbatches"),
        ("batch_size", "global_batch_size"),
        ("Offload_Optimiser", "offload_optimizer"),
    ],
)
def test_a_misspelt_key_is_recognized(given, meant):
    assert f"Did you mean {meant!r}?" == closest(given, OPTIONS[MODEL])


@pytest.mark.parametrize(
    "given",
    [
        *("context_parallel", "context_parallel_degree", "expert_parallel_degree", "zero_stage"),
        *("gradient_checkpointing", "mixed_precision", "offload_params", "learning_rate", "", "_"),
    ],
)
def test_another_feature_is_no_misspelt_key(given):
    """The hint lists what there is, and names nothing that the user did not mean."""
    assert closest(given, OPTIONS[MODEL]).startswith("Valid are 'activation_loading_horizon', ")
