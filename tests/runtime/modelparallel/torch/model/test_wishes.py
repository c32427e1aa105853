# SPDX-License-Identifier: Apache-2.0
"""Every argument of SMP's DistributedModel works or is refused by its name."""

import pytest

from smdist.modelparallel.torch.smp.distributed_model import ModelOptions

PLAIN = {
    "trace_device": "gpu",
    "trace_execution_times": False,
    "overlapping_allreduce": True,
    "backward_passes_per_step": 1,
    "average_grads_across_microbatches": True,
    "bucket_cap_mb": 25,
    "trace_memory_usage": False,
    "broadcast_buffers": True,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
}


def faults(**changed):
    return [fault.about for fault in ModelOptions(**{**PLAIN, **changed}).faults()]


def test_smps_defaults_are_right():
    assert [] == faults()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace_device", "tpu"),
        ("trace_execution_times", 1),
        ("overlapping_allreduce", False),
        ("backward_passes_per_step", 0),
        ("backward_passes_per_step", True),
        ("bucket_cap_mb", 0),
        ("bucket_cap_mb", "25"),
        ("gradient_as_bucket_view", True),
    ],
)
def test_what_is_not_there_is_refused_by_name(name, value):
    assert [(name,)] == faults(**{name: value})


def test_all_faults_come_at_once():
    assert [("trace_memory_usage",), ("bucket_cap_mb",)] == faults(
        trace_device="cpu", trace_memory_usage=True, bucket_cap_mb=-1
    )


@pytest.mark.parametrize(
    ("changed", "costs"),
    [
        ({}, "auto"),
        ({"trace_execution_times": True}, "measure"),
        ({"trace_memory_usage": True}, "measure"),
        ({"trace_device": "cpu"}, "estimate"),
    ],
)
def test_tracing_says_where_costs_come_from(changed, costs):
    assert costs == ModelOptions(**{**PLAIN, **changed}).costs
