# SPDX-License-Identifier: Apache-2.0
"""The shipped table of instance types."""

from dataclasses import replace

import botocore.session
import pytest

from sagemaker_dist.catalog import SHIPPED, Instance, read_table, training_instances, write_table

# What the table has and boto3's model lacks, and the other way about, each with its reason.
NEWER_THAN_BOTO3: frozenset[str] = frozenset()
OLDER_THAN_BOTO3: frozenset[str] = frozenset()

EVERY = training_instances().values()
ACCELERATED = [each for each in EVERY if each.is_accelerated]
BY_NAME = {"ids": lambda instance: instance.name}


def test_table_names_its_sources_and_date():
    table = read_table(SHIPPED)

    assert table.source.startswith("ec2.describe_instance_types")
    assert table.names.startswith("TrainingInstanceType in botocore ")
    assert table.date >= "2026-11-21"


def test_table_has_exactly_the_types_that_boto3_knows():
    """Every value of the enumeration is there; `sagemaker-dist instances refresh` adds new ones."""
    model = botocore.session.Session().get_service_model("sagemaker")
    known = set(model.shape_for("TrainingInstanceType").enum)

    assert known == set(training_instances()) - NEWER_THAN_BOTO3 | OLDER_THAN_BOTO3


@pytest.mark.parametrize("instance", ACCELERATED, **BY_NAME)
def test_accelerated_types_are_complete(instance):
    """Accelerator, kind, count, memory, host, network, EFA and architecture are known."""
    facts = (
        instance.accelerator,
        instance.accelerator_kind,
        instance.num_accelerators,
        instance.accelerator_memory_gib,
        instance.num_vcpus,
        instance.memory_gib,
        instance.network_gbps,
        instance.architecture,
    )

    assert all(facts)
    assert instance.num_efa is not None


@pytest.mark.parametrize("instance", ACCELERATED, **BY_NAME)
def test_link_is_known_where_there_are_several(instance):
    """One accelerator has nothing to be linked with."""
    assert (instance.num_accelerators > 1) == (instance.accelerator_link is not None)


def test_cpu_types_are_complete():
    """Of a type without accelerators, host, network and EFA are known, and nothing else."""
    hosts = [each for each in EVERY if not each.is_accelerated]
    complete = [
        each
        for each in hosts
        if None not in (each.num_vcpus, each.memory_gib, each.network_gbps, each.num_efa)
        and each.accelerator is each.accelerator_kind is each.accelerator_memory_gib is None
    ]

    assert hosts
    assert hosts == complete


def test_every_type_names_a_dated_source():
    """Each fact can be traced."""
    undated = [
        each.name
        for each in EVERY
        if not each.sources or not all(source[-10:] >= "2026-11-21" for source in each.sources)
    ]

    assert [] == undated


def test_bursts_are_no_slower_than_what_lasts():
    """The two figures of the network are not mixed up."""
    wrong = [
        each.name
        for each in EVERY
        if each.network_gbps < (each.network_sustained_gbps or each.network_gbps)
    ]

    assert [] == wrong


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("ml.p4d.24xlarge", ("gpu", 8, 40.0, "NVLink", 400.0, 4, "x86_64")),
        ("ml.p5.48xlarge", ("gpu", 8, 80.0, "NVLink", 3200.0, 32, "x86_64")),
        ("ml.g5.12xlarge", ("gpu", 4, 22.4, "PCIe", 40.0, 1, "x86_64")),
        ("ml.p3.16xlarge", ("gpu", 8, 16.0, "NVLink", 25.0, 0, "x86_64")),
        ("ml.p6e-gb200.36xlarge", ("gpu", 4, 185.0, "NVLink", 3200.0, 16, "arm64")),
        ("ml.trn2.48xlarge", ("neuron", 16, 96.0, "NeuronLink", 3200.0, 16, "x86_64")),
        ("ml.c5.xlarge", (None, 0, None, None, 10.0, 0, "x86_64")),
    ],
)
def test_facts(name, facts):
    instance = training_instances()[name]

    assert facts == (
        instance.accelerator_kind,
        instance.num_accelerators,
        instance.accelerator_memory_gib,
        instance.accelerator_link,
        instance.network_gbps,
        instance.num_efa,
        instance.architecture,
    )


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("ml.p4d.24xlarge", (True, True, False, True, True)),
        ("ml.g4dn.xlarge", (True, True, False, False, False)),
        ("ml.trn1.32xlarge", (True, False, True, True, True)),
        ("ml.c5n.18xlarge", (False, False, False, False, True)),
    ],
)
def test_capabilities(name, capabilities):
    """What a type can do follows from its facts."""
    instance = training_instances()[name]

    assert capabilities == (
        instance.is_accelerated,
        instance.has_gpu,
        instance.is_neuron,
        instance.has_fast_link,
        instance.supports_efa,
    )


def test_what_is_unknown_is_claimed_by_no_capability():
    """A type of which the name alone is known has no GPU, no EFA and no memory."""
    instance = Instance(name="ml.new.xlarge")

    assert not any((instance.is_accelerated, instance.has_gpu, instance.supports_efa))
    assert instance.total_accelerator_memory_gib is None
    assert "new" == instance.family


@pytest.mark.parametrize(
    ("name", "platform"),
    [("ml.p4d.24xlarge", "linux/amd64"), ("ml.p6e-gb200.36xlarge", "linux/arm64")],
)
def test_platform_is_dockers_word_for_the_architecture(name, platform):
    """What is unknown has none."""
    assert platform == training_instances()[name].platform
    assert Instance(name="ml.new.xlarge").platform is None


def test_total_memory():
    """Eight A100 of 40 GiB have 320."""
    assert 320.0 == training_instances()["ml.p4d.24xlarge"].total_accelerator_memory_gib


def test_what_people_wrote_leaves_what_ec2_said():
    """by_hand.json fills what is open and corrects one figure; both sources are named."""
    said = read_table(SHIPPED).instances["ml.trn2.48xlarge"]
    merged = training_instances()["ml.trn2.48xlarge"]

    assert (512.0, None) == (said.accelerator_memory_gib, said.accelerator_link)
    assert (96.0, "NeuronLink") == (merged.accelerator_memory_gib, merged.accelerator_link)
    assert said.sources == merged.sources[:1]
    assert 3 == len(merged.sources)


def test_table_survives_a_round_trip(tmp_path):
    """What is written is read back unchanged, and the shipped file is what we would write."""
    table = read_table(SHIPPED)
    older = replace(table.instances["ml.p4d.24xlarge"], sources=("another region, 2026-01-01",))
    changed = replace(table, instances={**table.instances, older.name: older})
    write_table(table, tmp_path / "same.json")
    write_table(changed, tmp_path / "changed.json")

    assert SHIPPED.read_text() == (tmp_path / "same.json").read_text()
    assert older == read_table(tmp_path / "changed.json").instances[older.name]
    assert table.instances == read_table(tmp_path / "same.json").instances


def test_table_cannot_be_changed():
    """Every caller shares it."""
    with pytest.raises(TypeError):
        training_instances()["ml.p4d.24xlarge"] = None
