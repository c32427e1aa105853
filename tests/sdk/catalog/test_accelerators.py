# SPDX-License-Identifier: Apache-2.0
"""How fast accelerators are."""

import pytest

from sagemaker_dist.catalog import accelerator_of, accelerators, training_instances

# GPUs of the catalogue of which no maker's figure was found.
UNKNOWN = {"K80", "RTX PRO 4500", "RTX PRO Server 6000"}
GPUS = [each for each in training_instances().values() if each.has_gpu]


def test_every_gpu_is_known_or_named_as_unknown():
    """A new type of the catalogue fails here until someone looks its speed up."""
    missing = {each.accelerator for each in GPUS if accelerator_of(each) is None}

    assert UNKNOWN == missing


def test_every_row_is_of_a_gpu_of_the_catalogue():
    """Nothing stands in the table that no type has."""
    used = {accelerator_of(each) for each in GPUS}

    assert [] == [each.name for each in accelerators() if each not in used]


def test_figures_name_a_dated_source():
    undated = [each.name for each in accelerators() if each.source[-10:] < "2026-11-21"]

    assert [] == undated


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("ml.p4d.24xlarge", ("bfloat16", 312e12, 1555e9, 300e9)),
        ("ml.p4de.24xlarge", ("bfloat16", 312e12, 2039e9, 300e9)),
        ("ml.p5.48xlarge", ("bfloat16", 989.4e12, 3350e9, 450e9)),
        ("ml.g4dn.12xlarge", ("float16", 65e12, 320e9, 16e9)),
        ("ml.p3.16xlarge", ("float16", 125e12, 900e9, 25e9)),
    ],
)
def test_figures(name, figures):
    """Two A100 differ by their memory; T4 and V100 have no bfloat16."""
    found = accelerator_of(training_instances()[name])

    assert figures == (
        found.dtype,
        found.flops_per_second,
        found.bytes_per_second,
        found.link_bytes_per_second,
    )


@pytest.mark.parametrize("name", ["ml.c5.xlarge", "ml.trn1.32xlarge", "ml.p2.xlarge"])
def test_what_nobody_said_is_none(name):
    """Hosts without accelerators, Neuron, and a GPU whose figures were not found."""
    assert accelerator_of(training_instances()[name]) is None


def test_a_link_is_slower_than_memory():
    """The two figures are not mixed up, nor is a link counted both ways at once."""
    wrong = [
        each.name
        for each in accelerators()
        if not 0 < each.link_bytes_per_second < each.bytes_per_second < each.flops_per_second
    ]

    assert [] == wrong


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("ml.p2.xlarge", "3.7"),
        ("ml.p3dn.24xlarge", "7.0"),
        ("ml.g4dn.xlarge", "7.5"),
        ("ml.p4de.24xlarge", "8.0"),
        ("ml.g5.xlarge", "8.6"),
        ("ml.g6e.xlarge", "8.9"),
        ("ml.p5en.48xlarge", "9.0"),
        ("ml.p6e-gb200.36xlarge", "10.0"),
        ("ml.p6-b300.48xlarge", "10.3"),
        ("ml.g7e.12xlarge", "12.0"),
    ],
)
def test_compute_capability(name, capability):
    """It comes from NVIDIA's list, which is named as its source."""
    instance = training_instances()[name]

    assert capability == instance.compute_capability
    assert instance.sources[-1].startswith("NVIDIA, CUDA GPU Compute Capability")


def test_every_gpu_has_a_compute_capability_and_nothing_else_has():
    wrong = [
        each.name
        for each in training_instances().values()
        if each.has_gpu != (each.compute_capability is not None)
    ]

    assert [] == wrong
