# SPDX-License-Identifier: Apache-2.0
"""Before a job starts, its instance type's facts say how gradients will travel."""

import re
from dataclasses import replace
from itertools import product

import pytest

from sagemaker_dist import DataParallel, ModelParallel
from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.contract import Distribution
from sagemaker_dist.planning import Job, transport_warning
from sagemaker_dist.planning.gradient_transport import describe_transport
from sagemaker_dist.planning.job_faults import capability_faults

EVERY = training_instances().values()
BY_NAME = {"ids": lambda instance: instance.name}
HINT = (
    "Use {} in the script, and an image with a CUDA build of torch: sagemaker-dist image build"
    " --accelerator cuda."
)
STAGED = HINT.format('init_process_group("smdist")')
NCCL = HINT.format("smp.init()")
COPIES = "smdist copies gradients of GPUs to the memory of their host, and sums them there"
NOT_RUN = "This has not yet run on a GPU."


def warning(name, count=1, processes=None, distribution=None):
    options = DataParallel(processes_per_host=processes)
    return transport_warning(
        Job(
            distribution=distribution or Distribution(engine=options),
            instance_type=name,
            instance_count=count,
        )
    )


def split_warning(name, count=1, processes=None):
    """The warning for a split model, whose gradients NCCL sends."""
    options = DataParallel(processes_per_host=processes)
    model = ModelParallel(pipeline_parallel_degree=1)
    return warning(name, count, distribution=Distribution(engine=options, model=model))


@pytest.mark.parametrize(
    ("name", "count", "has", "ways"),
    [
        ("ml.g4dn.xlarge", 1, "1 GPU (T4)", "A job of one rank has no gradients to send."),
        ("ml.p4d.24xlarge", 1, "8 GPUs (A100)", f"{COPIES}. {NOT_RUN}"),
        (
            "ml.p5.48xlarge",
            2,
            "8 GPUs (H100)",
            f"{COPIES}; it sends them between hosts over TCP, which may not fill the network's"
            f" 3200 Gbit/s. {NOT_RUN} EFA (32 interfaces) is not used.",
        ),
        (
            "ml.g5.2xlarge",
            4,
            "1 GPU (A10G)",
            f"{COPIES}; it sends them between hosts over TCP with 5 Gbit/s, and up to 10 Gbit/s for"
            f" some minutes. {NOT_RUN}",
        ),
        (
            "ml.p3.16xlarge",
            None,
            "8 GPUs (V100)",
            f"{COPIES}; it sends them between hosts, if there are several, over TCP with up to"
            f" 25 Gbit/s. {NOT_RUN}",
        ),
    ],
)
def test_gpu_hosts(name, count, has, ways):
    """One backend serves both kinds of tensors; the text says what the network does."""
    assert f"{name} has {has}. {STAGED} {ways}" == warning(name, count)


def test_no_warning_recommends_two_backends():
    """The engine takes CUDA tensors, so that scripts name one backend."""
    everything = [
        text
        for instance in EVERY
        for text in (warning(instance.name, 2), split_warning(instance.name, 2))
    ]

    assert any(everything)
    assert not [text for text in everything if text and "cuda:nccl" in text]


@pytest.mark.parametrize(
    ("name", "count", "has", "ways"),
    [
        (
            "ml.p4d.24xlarge",
            1,
            "8 GPUs (A100)",
            "NCCL sends gradients between the GPUs of a host over NVLink.",
        ),
        (
            "ml.g5.12xlarge",
            1,
            "4 GPUs (A10G)",
            "NCCL sends gradients between the GPUs of a host over PCIe.",
        ),
        (
            "ml.g5.8xlarge",
            2,
            "1 GPU (A10G)",
            "NCCL sends gradients between hosts over TCP, which may not fill the network's"
            " 25 Gbit/s. For EFA (1 interface), NCCL needs its plugin aws-ofi-nccl in the image:"
            " sagemaker-dist image build --nccl-plugin FILE.",
        ),
        (
            "ml.p3.2xlarge",
            2,
            "1 GPU (V100)",
            "NCCL sends gradients between hosts over TCP with up to 10 Gbit/s.",
        ),
    ],
)
def test_gpu_hosts_of_a_split_model(name, count, has, ways):
    """NCCL sends the gradients of a split model: its links, and what EFA takes."""
    stages = "Activations between stages are sent through the memory of the hosts."

    assert f"{name} has {has}. {NCCL} {ways} {stages}" == split_warning(name, count)


@pytest.mark.parametrize(
    ("processes", "ending"),
    [
        (
            16,
            " processes_per_host is 16, and a host has 8 GPUs: ranks share GPUs. The default is one"
            " rank per GPU.",
        ),
        (
            2,
            " processes_per_host is 2: 6 of the 8 GPUs of a host are idle, unless a rank uses"
            " several GPUs.",
        ),
        (8, ""),
    ],
)
def test_more_or_fewer_processes_than_gpus(processes, ending):
    says = f"ml.p4d.24xlarge has 8 GPUs (A100). {STAGED} {COPIES}. {NOT_RUN}{ending}"

    assert says == warning("ml.p4d.24xlarge", 1, processes)


def test_nccl_refuses_ranks_that_share_a_gpu():
    """Only of a split model: smdist's own backend serves such ranks."""
    assert "NCCL refuses ranks that share a GPU" in split_warning("ml.p4d.24xlarge", 1, 16)
    assert "NCCL" not in warning("ml.p4d.24xlarge", 1, 16)


def test_ranks_that_share_the_only_gpu_are_not_one_rank():
    assert (
        f"ml.g4dn.xlarge has 1 GPU (T4). {STAGED} {COPIES}. {NOT_RUN} processes_per_host is 2, and"
        " a host has 1 GPU: ranks share GPUs. The default is one rank per GPU."
    ) == warning("ml.g4dn.xlarge", 1, 2)


def test_arm64_hosts_say_how_to_build_the_image():
    says = warning("ml.p6e-gb200.36xlarge", 1)

    assert says.endswith(
        f"{NOT_RUN} ml.p6e-gb200.36xlarge is arm64: build the image with"
        " sagemaker-dist image build --platform linux/arm64."
    )


def test_more_ranks_than_vcpus_are_told():
    """Hosts with CPUs alone, too; as many as there are is well."""
    says = "processes_per_host is 3, and a host of ml.m5.large has 2 vCPUs, which the ranks share."

    assert says == warning("ml.m5.large", 2, 3)
    assert warning("ml.m5.large", 2, 2) is None


def test_neuron_hosts_in_an_image_of_the_users_own():
    """Our launcher does not count their accelerators."""
    says = (
        "ml.trn1.32xlarge has 16 Neuron accelerators (Trainium), and smdist sends tensors of CPUs"
        " and GPUs only: the Neuron SDK in the image must send the others."
    )

    assert says == warning("ml.trn1.32xlarge", 2, 32)
    assert f"{says} processes_per_host is left out: each host starts one rank." == warning(
        "ml.trn1.32xlarge", 2
    )


@pytest.mark.parametrize("name", ["local_process", "local_gpu", "ml.new.xlarge", None])
def test_nothing_is_said_of_other_types(name):
    assert warning(name, 2) is None


def test_nothing_is_said_without_our_distribution():
    assert transport_warning(Job(instance_type="ml.p4d.24xlarge", instance_count=2)) is None


@pytest.mark.parametrize("count", ["two", 1.5, object()])
def test_a_count_that_is_none_is_unknown(count):
    """It is a fault, reported elsewhere."""
    assert warning("ml.p4d.24xlarge", None) == warning("ml.p4d.24xlarge", count)


@pytest.mark.parametrize("instance", EVERY, **BY_NAME)
def test_every_type(instance):
    """GPUs always have a text, CPUs one about vCPUs alone; figures are the catalogue's."""
    for count, processes in product([1, 2, None], [None, 1, 8]):
        says = warning(instance.name, count, processes)
        is_crowded = processes is not None and processes > instance.num_vcpus

        assert bool(says) == (instance.is_accelerated or is_crowded)
        said = says or ""
        assert "None" not in said
        assert {*_figures(said, instance)} <= _facts(instance, processes)
        assert is_crowded == ("vCPU" in said)
        assert (instance.architecture == "arm64") == ("arm64" in said)
        assert (instance.has_gpu and count != 1) == ("TCP" in said)
        assert (instance.has_gpu and instance.supports_efa and count != 1) == ("EFA" in said)


@pytest.mark.parametrize("instance", [each for each in EVERY if each.has_gpu], **BY_NAME)
def test_the_link_within_a_host_is_named(instance):
    """NCCL uses it where a host has several ranks."""
    for processes in (None, 1, 8):
        is_linked = instance.num_accelerators > 1 and processes != 1
        says = split_warning(instance.name, 2, processes)

        assert is_linked == (f"over {instance.accelerator_link}" in says)


def _figures(says, instance):
    said = says.replace(instance.name, "").replace(f"({instance.accelerator})", "")
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", said)


def _facts(instance, processes):
    numbers = (
        processes,
        instance.num_accelerators,
        instance.num_accelerators - (processes or 0),
        instance.num_vcpus,
        instance.num_efa,
        instance.network_gbps,
        instance.network_sustained_gbps,
    )
    return {f"{number:g}" for number in numbers if number is not None}


@pytest.mark.parametrize(
    "unknown",
    [
        "accelerator",
        "num_accelerators",
        "accelerator_link",
        "num_vcpus",
        "network_gbps",
        "network_sustained_gbps",
        "num_efa",
        "architecture",
    ],
)
@pytest.mark.parametrize("name", ["ml.p4d.24xlarge", "ml.g5.xlarge", "ml.trn1.2xlarge"])
@pytest.mark.parametrize("processes", [None, 1, 999])
def test_what_is_unknown_is_left_out(name, unknown, processes):
    nothing = getattr(Instance(name=""), unknown)
    instance = replace(training_instances()[name], **{unknown: nothing})
    says = describe_transport(instance, processes_per_host=processes, num_hosts=2)

    assert "smdist" in says
    assert not re.search(r"None|\b0\b|\(\)| {2}", says)


def test_of_a_name_alone_nothing_is_said():
    assert describe_transport(Instance(name="ml.new.xlarge"), processes_per_host=8) is None


def faults(name, *, names_image=False):
    job = Job(distribution=Distribution(engine=DataParallel()), instance_type=name)
    return list(capability_faults(replace(job, names_image=names_image)))


def test_neuron_is_refused_in_our_image():
    (fault,) = faults("ml.trn1.32xlarge")

    assert (
        "instance_type is 'ml.trn1.32xlarge': it has Neuron accelerators, and the sagemaker-dist"
        " image has no"
        " Neuron SDK: ranks would train on the host's CPUs. Pass a type with GPUs or with CPUs"
        " alone, or the image_uri of an image with the Neuron SDK"
    ) == str(fault).rstrip(".")


@pytest.mark.parametrize("instance", EVERY, **BY_NAME)
def test_accelerators_of_neuron_and_nothing_else_are_refused(instance):
    """An image of the user's own may hold anything."""
    assert instance.is_neuron == bool(faults(instance.name))
    assert [] == faults(instance.name, names_image=True)


def test_neuron_without_our_distribution_is_the_parents_affair():
    job = Job(instance_type="ml.trn1.32xlarge")

    assert [] == list(capability_faults(job))


def test_tensorflow_copies_gradients_of_gpus_to_their_hosts():
    said = transport_warning(
        Job(
            kind="TensorFlow",
            distribution=Distribution(engine=DataParallel()),
            instance_type="ml.g5.12xlarge",
            instance_count=2,
        )
    )

    assert said == (
        "ml.g5.12xlarge has 4 GPUs (A10G); TensorFlow copies gradients from GPUs to the memory"
        " of their host, where smdist sums them. Between hosts, smdist sends them over TCP,"
        " which may not fill the network's 40 Gbit/s."
    )
