# SPDX-License-Identifier: Apache-2.0
"""Keys that the sagemaker-dist launcher refuses by name, or that SageMaker's SDK would drop."""

from types import SimpleNamespace

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist import (
    MPI,
    SMDDP,
    DataParallel,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    OnInstanceGroup,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    SMPv1,
    SMPv2,
    TorchDistributed,
)
from sagemaker_dist.contract import claim_for_launcher, read_distribution
from sagemaker_dist.planning import Job, Terms, construction_faults, construction_warnings
from sagemaker_dist.planning.distribution_support import SUPPORT

ON = {"enabled": True}
P4D, C5 = "ml.p4d.24xlarge", "ml.c5.xlarge"
GROUPS = [
    {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": 2}
    for name, kind in (("train", P4D), ("data", C5))
]
SMP = {"smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}


def job(value, **changes):
    """A job of two hosts with eight GPUs each, in the sagemaker-dist image by default."""
    asked = read_distribution(value)
    is_ours = changes.setdefault("uses_launcher", True)
    facts = {"instance_type": P4D, "instance_count": 2, "kind": "PyTorch", **changes}
    return Job(distribution=claim_for_launcher(asked) if is_ours else asked, **facts)


def faults(value, **changes):
    return fields_of(construction_faults(job(value, **changes)))


@pytest.mark.parametrize("kind", ["PyTorch", "HuggingFace", "Estimator"])
@pytest.mark.parametrize(
    "option",
    [
        DataParallel(),
        SMDDP(),
        SMDDP(custom_mpi_options="-verbose -x NCCL_DEBUG=VERSION"),
        TorchDistributed(),
        PyTorchDDP(),
        {**TorchDistributed().distribution(), **SMDDP().distribution()},
        {"torch_distributed": ON, "mpi": {"enabled": False}},
        MPI(processes_per_host=8, custom_mpi_options="-x NCCL_DEBUG=INFO --verbose"),
        ModelParallel(pipeline_parallel_degree=2),
        SMP,
        SMPv1(pipeline_parallel_degree=2, processes_per_host=8, ddp=True),
    ],
)
def test_our_launcher_starts_ranks_of_torch(kind, option):
    assert [] == faults(option, kind=kind)
    assert job(option).distribution.is_launched


@pytest.mark.parametrize(
    "option", [DataParallel(), SMDDP(), MPI(), ParameterServer(), MultiWorkerMirroredStrategy()]
)
def test_our_launcher_starts_ranks_of_tensorflow(option):
    assert [] == faults(option, kind="TensorFlow")
    assert job(option).distribution.is_launched


@pytest.mark.parametrize(
    ("option", "kind", "about", "fault"),
    [
        (
            MPI(custom_mpi_options="-x A=1 --mca btl tcp -host a"),
            "PyTorch",
            "mpi.custom_mpi_options",
            "unsupported",
        ),
        (MPI(custom_mpi_options="-x RANK=1"), "Estimator", "mpi.custom_mpi_options", "conflict"),
        (
            {**MPI().distribution(), **TorchDistributed().distribution()},
            "PyTorch",
            "mpi",
            "conflict",
        ),
        (
            {**MPI().distribution(), **DataParallel().distribution()},
            "PyTorch",
            "mpi",
            "conflict",
        ),
        (ParameterServer(), "PyTorch", "parameter_server", "unsupported"),
        (
            MultiWorkerMirroredStrategy(),
            "Estimator",
            "multi_worker_mirrored_strategy",
            "unsupported",
        ),
        (
            {**ParameterServer().distribution(), **MultiWorkerMirroredStrategy().distribution()},
            "TensorFlow",
            "multi_worker_mirrored_strategy",
            "conflict",
        ),
        (PyTorchXLA(), "HuggingFace", "pytorchxla", "unsupported"),
        (SMPv2(hybrid_shard_degree=8), "PyTorch", "torch_distributed", "unsupported"),
        (
            {**DataParallel().distribution(), **SMP},
            "Estimator",
            "smdistributed.modelparallel",
            "conflict",
        ),
        (TorchDistributed(), "TensorFlow", "torch_distributed", "unsupported"),
        (
            {**DataParallel().distribution(), **TorchDistributed().distribution()},
            "PyTorch",
            "torch_distributed",
            "conflict",
        ),
        (
            {**PyTorchDDP().distribution(), **TorchDistributed().distribution()},
            "PyTorch",
            "pytorchddp",
            "conflict",
        ),
        (
            SMDDP(custom_mpi_options="-v --bind-to none"),
            "PyTorch",
            "smdistributed.dataparallel.custom_mpi_options",
            "unsupported",
        ),
        (
            PyTorchDDP(custom_mpi_options="-v"),
            "Estimator",
            "pytorchddp.custom_mpi_options",
            "unsupported",
        ),
    ],
)
def test_what_our_image_does_not_serve_is_refused_by_name(option, kind, about, fault):
    assert [(f"distribution.{about}", fault)] == faults(option, kind=kind)


def test_text_of_a_key_that_is_refused():
    """The hint has every way out: another option, SageMaker's image, and no distribution."""
    (fault,) = construction_faults(job(PyTorchXLA()))

    assert str(fault) == (
        "distribution requests 'pytorchxla': the image of sagemaker_dist has no XLA. Select"
        " SageMaker's image by framework_version and py_version, or leave it out."
    )


@pytest.mark.parametrize(
    ("option", "kind", "expected"),
    [
        (
            MultiWorkerMirroredStrategy(),
            "PyTorch",
            [("distribution.multi_worker_mirrored_strategy", "unsupported")],
        ),
        ({"torch_distributed": ON, "mpi": ON}, "PyTorch", [("distribution", "conflict")]),
        (
            {"instance_groups": ["train"], "mpi": {"enabled": False}},
            "PyTorch",
            [("distribution.instance_groups", "missing"), ("distribution", "missing")],
        ),
        (SMP, "PyTorch", [("distribution", "missing")]),
        (SMPv2(hybrid_shard_degree=8), "HuggingFace", [("distribution", "no_effect")]),
        ({**SMP, "mpi": {**ON, "processes_per_host": 3}}, "PyTorch", []),
    ],
)
def test_what_sagemakers_sdk_would_drop_is_refused(option, kind, expected):
    found = faults(option, kind=kind, uses_launcher=False, terms=Terms(instance_groups=None))

    assert expected == found


@pytest.mark.parametrize("option", [SMDDP(), SMPv1(partitions=2, processes_per_host=8)])
def test_awss_libraries_need_gpus(option):
    """Unless an image is named, which may hold the sagemaker-dist launcher."""
    found = faults(option, instance_type=C5, uses_launcher=False)

    about, kind = found[0]

    assert about.startswith("distribution.smdistributed.")
    assert "missing_gpu" == kind
    assert [] == faults(option, instance_type=C5, uses_launcher=False, names_image=True)
    assert [] == faults(option, uses_launcher=False)


@pytest.mark.parametrize(
    ("parameters", "version", "about", "kind"),
    [
        ({"partitionz": 2}, 1, "partitionz", "unknown"),
        ({}, 1, "", "missing"),
        ({"partitions": 2, "hybrid_shard_degree": 2}, 1, "hybrid_shard_degree", "unsupported"),
        ({"partitions": 3}, 1, "partitions", "indivisible"),
        ({"partitions": 2, "placement_strategy": "DPT"}, 1, "placement_strategy", "unsupported"),
        ({"partitions": 2, "placement_strategy": "DTP"}, 1, "placement_strategy", "unsupported"),
        ({"hybrid_shard_degree": 5}, 2, "hybrid_shard_degree", "indivisible"),
        ({"hybrid_shard_degree": "8"}, 2, "hybrid_shard_degree", "option"),
    ],
)
def test_parameters_of_smp_are_checked(parameters, version, about, kind):
    """Keys, values, and degrees against two hosts of eight GPUs: one fault each."""
    launcher = {1: MPI(processes_per_host=8), 2: TorchDistributed()}[version]
    section = {"smdistributed": {"modelparallel": {**ON, "parameters": parameters}}}
    (found,) = faults({**section, **launcher.distribution()}, uses_launcher=False)
    place = "distribution.smdistributed.modelparallel.parameters"

    assert (f"{place}.{about}".rstrip("."), kind) == found


@pytest.mark.parametrize(
    ("strategy", "hint"),
    [
        ("DPT", "Pass 'cluster', which means the same order"),
        ("DTP", "Leave it out, and call smp.init({'placement_strategy': 'DTP'}) in the script"),
    ],
)
def test_an_order_of_ranks_without_a_name_has_a_way_out(strategy, hint):
    """The SDK's name for the same order, if there is one."""
    option = {"partitions": 2, "placement_strategy": strategy}
    section = {"smdistributed": {"modelparallel": {**ON, "parameters": option}}}
    asked = {**section, **MPI(processes_per_host=8).distribution()}
    (fault,) = construction_faults(job(asked, uses_launcher=False))

    assert hint == fault.hint


@pytest.mark.parametrize(
    ("option", "kind", "text"),
    [
        (TorchDistributed(), "TensorFlow", "which SageMaker's TensorFlow ignores"),
        (ParameterServer(), "PyTorch", "which SageMaker's PyTorch ignores"),
        (
            OnInstanceGroup(strategy=TorchDistributed(), group="train"),
            "PyTorch",
            "with 'torch_distributed', so the ranks of each group train separately",
        ),
        (MPI(), "PyTorch", None),
        (SMDDP(), "TensorFlow", None),
    ],
)
def test_what_does_less_than_was_asked_is_warned_of(option, kind, text):
    groups = {"terms": Terms(instance_groups=GROUPS)} if isinstance(option, OnInstanceGroup) else {}
    made = job(option, kind=kind, uses_launcher=False, **groups)
    found = list(construction_warnings(made))

    assert [] == list(construction_faults(made))
    assert len(found) == (text is not None)
    assert text is None or text in found[0]


def test_a_job_of_groups_trains_in_the_one_that_is_named():
    """Weights are counted against its hosts, and what is said of GPUs is said of its type."""
    terms = Terms(instance_groups=GROUPS, passed=frozenset({"instance_groups"}))
    option = OnInstanceGroup(strategy=DataParallel(), group="train")
    facts = {"instance_type": None, "instance_count": None, "terms": terms}
    facts["other"] = {"instance_groups": GROUPS}
    made = job(option, **facts)

    assert (P4D, 2) == made.training_hosts
    assert [] == list(construction_faults(made))
    assert P4D in next(construction_warnings(made))
    assert [("instance_groups", "missing")] == faults(DataParallel(), **facts)


def test_every_key_has_a_typed_option():
    """As the table says, and all of them are on the face of the package."""
    names = [name for support in SUPPORT.values() for name in support.option.split(", ")]

    assert len(names) == len(set(names))
    assert set(names) <= {each.__name__ for each in (
        DataParallel, ModelParallel, SMDDP, SMPv1, SMPv2, TorchDistributed, PyTorchDDP,
        PyTorchXLA, MPI, ParameterServer, MultiWorkerMirroredStrategy, OnInstanceGroup,
    )}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "kind", "about", "fault"),
    [
        ({**SMDDP().distribution(), "mpi": ON}, "PyTorch", "distribution", "conflict"),
        (
            {**SMDDP().distribution(), "parameter_server": ON},
            "TensorFlow",
            "distribution",
            "conflict",
        ),
        (
            OnInstanceGroup(strategy=SMPv2(hybrid_shard_degree=8), group="train"),
            "PyTorch",
            "distribution.instance_groups",
            "no_effect",
        ),
        (
            OnInstanceGroup(strategy=ParameterServer(), group="train"),
            "TensorFlow",
            "distribution.instance_groups",
            "no_effect",
        ),
        (
            {"smdistributed": {"modelparallel": {**ON, "parameters": None}}, "mpi": ON},
            "PyTorch",
            "distribution.smdistributed.modelparallel.parameters",
            "type",
        ),
        (
            SMPv1(partitions=2, processes_per_host=16),
            "PyTorch",
            "distribution.mpi.processes_per_host",
            "option",
        ),
    ],
)
def test_what_sagemakers_sdk_would_refuse_late_or_drop(option, kind, about, fault):
    terms = Terms(instance_groups=GROUPS) if isinstance(option, OnInstanceGroup) else None
    found = faults(option, kind=kind, uses_launcher=False, terms=terms)

    assert [(about, fault)] == [each for each in found if "instance_type" != each[0]]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (PyTorchDDP(custom_mpi_options="-v"), "ignores the custom_mpi_options '-v'"),
        (
            OnInstanceGroup(strategy=PyTorchDDP(), group="train"),
            "does not send them with 'pytorchddp',",
        ),
    ],
)
def test_hugging_face_drops_parts_of_pytorchddp(option, text):
    (found,) = construction_warnings(
        job(option, kind="HuggingFace", uses_launcher=False, terms=Terms(instance_groups=GROUPS))
    )

    assert text in found


def test_versions_that_lack_a_strategy():
    old = {"kind": "TensorFlow", "uses_launcher": False, "framework_version": "2.8.0"}
    found = faults(MultiWorkerMirroredStrategy(), **old)
    new = {"uses_launcher": False, "framework_version": "2.3.0"}
    (warned,) = construction_warnings(job(SMPv1(partitions=2, processes_per_host=8), **new))

    assert [("framework_version", "unsupported")] == found
    assert (
        "SageMaker's images of PyTorch 2.3.0 do not have it; the last images with it are those of"
        " PyTorch 2.0." in warned
    )


def test_names_of_deep_learning_containers_are_warned_of():
    image = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
    made = job(DataParallel(), terms=Terms(image_uri=image), instance_type=C5, names_image=True)
    mine = job(DataParallel(), terms=Terms(image_uri="r/mine:1"), instance_type=C5)

    assert [
        "an image of AWS's Deep Learning Containers" in each for each in construction_warnings(made)
    ] == [True]
    assert [] == list(construction_warnings(mine))


@pytest.mark.parametrize("option", [DataParallel, TorchDistributed, "mpi", 3])
def test_what_is_no_option_is_refused(option):
    assert [("distribution", "type")] == fields_raised(lambda: read_distribution(option))


def test_our_launcher_is_not_asked_by_a_pipeline():
    variable = SimpleNamespace(expr={"Get": "Parameters.On"})
    theirs = read_distribution({"torch_distributed": {"enabled": variable}})
    ours = {"smdist": {"dataparallel": {"enabled": variable}}}

    assert [("distribution.torch_distributed.enabled", "pipeline_variable")] == fields_raised(
        lambda: claim_for_launcher(theirs)
    )
    assert [("distribution.smdist.dataparallel.enabled", "pipeline_variable")] == fields_raised(
        lambda: read_distribution(ours)
    )
