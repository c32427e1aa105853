# SPDX-License-Identifier: Apache-2.0
"""EC2's description of a type, in our words."""

import pytest

from sagemaker_dist.catalog.from_ec2 import instance_of


def card(lasting=None, best=None) -> dict:
    figures = {"BaselineBandwidthInGbps": lasting, "PeakBandwidthInGbps": best}
    return {name: value for name, value in figures.items() if value is not None}


def network_of(headline: str, *cards: dict) -> tuple:
    network = {"NetworkPerformance": headline, "NetworkCards": list(cards)}
    instance = instance_of({"InstanceType": "x.large", "NetworkInfo": network}, "source")
    return instance.network_gbps, instance.network_sustained_gbps


@pytest.mark.parametrize(
    ("headline", "cards", "expected"),
    [
        ("100 Gigabit", [card(100.0, 100.0)], (100.0, 100.0)),
        ("4x 100 Gigabit", [card(100.0, 100.0)] * 4, (400.0, 400.0)),
        ("Up to 12.5 Gigabit", [card(3.125, 12.5)], (12.5, 3.125)),
        ("Up to 10 Gigabit", [card()], (10.0, None)),
        ("Up to 10 Gigabit", [], (10.0, None)),
        ("High", [card(0.75, 2.8)], (2.8, 0.75)),
        ("Moderate", [], (None, None)),
        # Cards of g6e.24xlarge share what the host has; those of p6-b200 leave out EFA.
        ("200 Gigabit", [card(200.0, 200.0)] * 2, (200.0, 200.0)),
        ("3200 Gigabit", [card(200.0, 200.0)] * 8, (3200.0, 3200.0)),
    ],
)
def test_network(headline, cards, expected):
    """The headline counts, the cards say what lasts of an "up to"."""
    assert expected == network_of(headline, *cards)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ({"EfaSupported": False}, 0),
        ({"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 32}}, 32),
        ({"EfaSupported": True}, None),
        ({}, None),
    ],
)
def test_efa(network, expected):
    """None is unknown; 0 is none."""
    instance = instance_of({"InstanceType": "x.large", "NetworkInfo": network}, "source")

    assert expected == instance.num_efa


def test_what_ec2_leaves_out_is_unknown():
    """A bare description gives a name and a source, and no guess."""
    instance = instance_of({"InstanceType": "x.large"}, "source")

    assert ("ml.x.large", ("source",)) == (instance.name, instance.sources)
    assert {None} == {
        instance.accelerator,
        instance.num_vcpus,
        instance.memory_gib,
        instance.network_gbps,
        instance.num_efa,
        instance.architecture,
    }


def test_neuron():
    """Cores are counted over all devices; has_gpu is not deceived."""
    device = {
        "Name": "Trainium",
        "Count": 16,
        "CoreInfo": {"Count": 2},
        "MemoryInfo": {"SizeInMiB": 32768},
    }
    described = {"InstanceType": "x.large", "NeuronInfo": {"NeuronDevices": [device]}}
    instance = instance_of(described, "source")

    assert ("Trainium", 16, 32, 32.0) == (
        instance.accelerator,
        instance.num_accelerators,
        instance.num_neuron_cores,
        instance.accelerator_memory_gib,
    )
    assert instance.is_neuron
    assert not instance.has_gpu


@pytest.mark.parametrize(
    ("supported", "expected"),
    [(["i386", "x86_64"], "x86_64"), (["arm64"], "arm64"), (["i386"], None)],
)
def test_architecture(supported, expected):
    """Only what an image can be built for."""
    described = {
        "InstanceType": "x.large",
        "ProcessorInfo": {"SupportedArchitectures": supported},
    }

    assert expected == instance_of(described, "source").architecture
