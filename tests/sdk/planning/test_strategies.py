# SPDX-License-Identifier: Apache-2.0
"""Keys that the sagemaker-dist launcher refuses by name, or that SageMaker's SDK would drop."""

from types import SimpleNamespace

import pytest

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
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning import Job, Terms, construction_faults, construction_warnings
from sagemaker_dist.planning.distribution_support import SUPPORT

ON = {"enabled": True}
P4D, C5 = "ml.p4d.24xlarge", "ml.c5.xlarge"
GROUPS = [
    {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": 2}
    for name, kind in (("train", P4D), ("data", C5))
]
SMP = {"smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}
THEIR_IMAGE = " Select SageMaker's image by framework_version and py_version, or leave it out."
INSTEAD = " Pass DataParallel() for one rank per GPU, or leave it out."
INSTEAD_OR_THEIRS = (
    " Pass DataParallel() for one rank per GPU, or select SageMaker's image by framework_version"
    " and py_version, or leave it out."
)


def job(value, **changes):
    """A job of two hosts with eight GPUs each, in the sagemaker-dist image by default."""
    asked = read_distribution(value)
    is_ours = changes.setdefault("uses_launcher", True)
    facts = {"instance_type": P4D, "instance_count": 2, "kind": "PyTorch", **changes}
    return Job(distribution=claim_for_launcher(asked) if is_ours else asked, **facts)


def faults(value, **changes):
    return [str(fault) for fault in construction_faults(job(value, **changes))]


@pytest.mark.parametrize("kind", ["PyTorch", "HuggingFace", "Estimator"])
@pytest.mark.parametrize(
    "option",
    [
        DataParallel(),
        SMDDP(),
        TorchDistributed(),
        PyTorchDDP(),
        {**TorchDistributed().distribution(), **SMDDP().distribution()},
        {"torch_distributed": ON, "mpi": {"enabled": False}},
        ModelParallel(pipeline_parallel_degree=2),
        SMP,
        SMPv1(pipeline_parallel_degree=2, processes_per_host=8, ddp=True),
    ],
)
def test_our_launcher_starts_ranks_of_torch(kind, option):
    assert [] == faults(option, kind=kind)
    assert job(option).distribution.is_launched


@pytest.mark.parametrize(
    "option", [DataParallel(), SMDDP(), ParameterServer(), MultiWorkerMirroredStrategy()]
)
def test_our_launcher_starts_ranks_of_tensorflow(option):
    assert [] == faults(option, kind="TensorFlow")
    assert job(option).distribution.is_launched


@pytest.mark.parametrize(
    ("option", "kind", "fault"),
    [
        (
            MPI(processes_per_host=8),
            "PyTorch",
            "'mpi': the image of sagemaker_dist has no MPI, because it starts ranks with"
            " torchrun. Pass {'torch_distributed': {'enabled': True}} for one rank per GPU, or"
            " select SageMaker's image by framework_version and py_version, or leave it out.",
        ),
        (
            MPI(),
            "TensorFlow",
            "'mpi': the image of sagemaker_dist has no MPI, because its own launcher starts the"
            " ranks." + INSTEAD_OR_THEIRS,
        ),
        (
            ParameterServer(),
            "PyTorch",
            "'parameter_server': it is a strategy of TensorFlow." + INSTEAD,
        ),
        (
            MultiWorkerMirroredStrategy(),
            "Estimator",
            "'multi_worker_mirrored_strategy': it is a strategy of TensorFlow." + INSTEAD,
        ),
        (
            {**ParameterServer().distribution(), **MultiWorkerMirroredStrategy().distribution()},
            "TensorFlow",
            "'parameter_server' and 'multi_worker_mirrored_strategy': a job has one launcher."
            " Leave 'multi_worker_mirrored_strategy' out.",
        ),
        (
            PyTorchXLA(),
            "HuggingFace",
            "'pytorchxla': the image of sagemaker_dist has no XLA." + THEIR_IMAGE,
        ),
        (
            SMPv2(hybrid_shard_degree=8),
            "PyTorch",
            "'smdistributed.modelparallel' with 'torch_distributed', which is SMP v2: the"
            " runtime of sagemaker_dist runs only requests for SMP v1. Use"
            " ModelParallel(sharding='full') for sharding, or SageMaker's image for SMP v2.",
        ),
        (
            {**DataParallel().distribution(), **SMP},
            "Estimator",
            "sagemaker_dist and 'smdistributed.modelparallel': a job has one launcher."
            " Leave 'smdistributed.modelparallel' out.",
        ),
        (
            ModelParallel(),
            "TensorFlow",
            "ModelParallel: the runtime of sagemaker_dist splits no models of TensorFlow."
            + INSTEAD_OR_THEIRS,
        ),
        (
            TorchDistributed(),
            "TensorFlow",
            "'torch_distributed': it starts ranks of torch." + INSTEAD,
        ),
        (
            {**DataParallel().distribution(), **TorchDistributed().distribution()},
            "PyTorch",
            "sagemaker_dist and 'torch_distributed': a job has one launcher."
            " Leave 'torch_distributed' out.",
        ),
        (
            {**PyTorchDDP().distribution(), **TorchDistributed().distribution()},
            "PyTorch",
            "'torch_distributed' and 'pytorchddp': a job has one launcher. Leave 'pytorchddp' out.",
        ),
        (
            SMDDP(custom_mpi_options="-v"),
            "PyTorch",
            "'smdistributed.dataparallel' with custom_mpi_options '-v': the launcher of"
            " sagemaker_dist starts ranks with torchrun and uses no MPI."
            " Leave custom_mpi_options out.",
        ),
        (
            PyTorchDDP(custom_mpi_options="-v"),
            "Estimator",
            "'pytorchddp' with custom_mpi_options '-v': the launcher of sagemaker_dist starts"
            " ranks with torchrun and uses no MPI. Leave custom_mpi_options out.",
        ),
    ],
)
def test_what_our_image_does_not_serve_is_refused_by_name(option, kind, fault):
    assert [f"distribution requests {fault}"] == faults(option, kind=kind)


@pytest.mark.parametrize(
    ("option", "kind", "fault"),
    [
        (
            MultiWorkerMirroredStrategy(),
            "PyTorch",
            "distribution requests 'multi_worker_mirrored_strategy': SageMaker's PyTorch does"
            " not support it. Leave 'multi_worker_mirrored_strategy' out.",
        ),
        (
            {"torch_distributed": ON, "mpi": ON},
            "PyTorch",
            "distribution requests 'torch_distributed' and 'mpi': a job has one launcher, and"
            " SageMaker's SDK would ignore the others. Keep one of them.",
        ),
        (
            {"instance_groups": ["train"], "mpi": {"enabled": False}},
            "PyTorch",
            "distribution has instance_groups: no other key of it is enabled, so nothing would"
            " start ranks in them. Enable a key such as 'mpi', or leave distribution out.",
        ),
        (
            SMP,
            "PyTorch",
            "distribution requests 'smdistributed.modelparallel': no key that starts its ranks"
            " is enabled. Add 'mpi': {'enabled': True, 'processes_per_host': ...} for SMP v1,"
            " or 'torch_distributed': {'enabled': True} for SMP v2.",
        ),
        (
            SMPv2(hybrid_shard_degree=8),
            "HuggingFace",
            "distribution requests 'smdistributed.modelparallel' with 'torch_distributed': with"
            " this key, SageMaker's HuggingFace ignores it. Use PyTorch for SMP v2, or 'mpi'"
            " for SMP v1.",
        ),
        (
            {**SMP, "mpi": {**ON, "processes_per_host": 3}},
            "PyTorch",
            None,
        ),
    ],
)
def test_what_sagemakers_sdk_would_drop_is_refused(option, kind, fault):
    found = faults(option, kind=kind, uses_launcher=False, terms=Terms(instance_groups=None))

    assert ([] if fault is None else [fault]) == [each for each in found if "estimator" not in each]


@pytest.mark.parametrize("option", [SMDDP(), SMPv1(partitions=2, processes_per_host=8)])
def test_awss_libraries_need_gpus(option):
    """Unless an image is named, which may hold the sagemaker-dist launcher."""
    found = faults(option, instance_type=C5, uses_launcher=False)

    assert found[0].startswith("distribution requests 'smdistributed.")
    assert found[0].endswith(
        "on ml.c5.xlarge: AWS's library runs on GPUs, and this instance type has none. Use an"
        " instance type with GPUs: sagemaker-dist instances list --accelerated."
    )
    assert [] == faults(option, instance_type=C5, uses_launcher=False, names_image=True)
    assert [] == faults(option, uses_launcher=False)


@pytest.mark.parametrize(
    ("parameters", "version", "text"),
    [
        ({"partitionz": 2}, 1, "Did you mean 'partitions'?"),
        ({}, 1, "['parameters']"),
        ({"partitions": 2, "hybrid_shard_degree": 2}, 1, "SMP v2"),
        ({"partitions": 3}, 1, "world"),
        ({"partitions": 2, "placement_strategy": "DPT"}, 1, "Pass 'cluster', which means the"
                                                            " same order."),
        ({"partitions": 2, "placement_strategy": "DTP"}, 1, "call smp.init({'placement_strategy'"),
        ({"hybrid_shard_degree": 5}, 2, "world"),
        ({"hybrid_shard_degree": "8"}, 2, "'8'"),
    ],
)  # fmt: skip
def test_parameters_of_smp_are_checked(parameters, version, text):
    """Keys, values, and degrees against two hosts of eight GPUs: one fault each."""
    launcher = {1: MPI(processes_per_host=8), 2: TorchDistributed()}[version]
    section = {"smdistributed": {"modelparallel": {**ON, "parameters": parameters}}}
    (found,) = faults({**section, **launcher.distribution()}, uses_launcher=False)

    assert text in found


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
    assert [
        "instance_groups has 2 groups, and distribution names none of them: the ranks of each"
        " group would train separately from those of the others. Pass"
        " OnInstanceGroup(strategy=..., group=...), or add 'instance_groups': [group] to the dict."
    ] == faults(DataParallel(), **facts)


def test_every_key_has_a_typed_option():
    """As the table says, and all of them are on the face of the package."""
    names = [name for support in SUPPORT.values() for name in support.option.split(", ")]

    assert len(names) == len(set(names))
    assert set(names) <= {each.__name__ for each in (
        DataParallel, ModelParallel, SMDDP, SMPv1, SMPv2, TorchDistributed, PyTorchDDP,
        PyTorchXLA, MPI, ParameterServer, MultiWorkerMirroredStrategy, OnInstanceGroup,
    )}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "kind", "text"),
    [
        ({**SMDDP().distribution(), "mpi": ON}, "PyTorch", "'mpi' and 'smdistributed.datap"),
        ({**SMDDP().distribution(), "parameter_server": ON}, "TensorFlow", "a job has one launch"),
        (
            OnInstanceGroup(strategy=SMPv2(hybrid_shard_degree=8), group="train"),
            "PyTorch",
            "SageMaker's SDK sends them only with 'mpi' and 'smdistributed.dataparallel'",
        ),
        (
            OnInstanceGroup(strategy=ParameterServer(), group="train"),
            "TensorFlow",
            "distribution has instance_groups with 'parameter_server'",
        ),
        (
            {"smdistributed": {"modelparallel": {**ON, "parameters": None}}, "mpi": ON},
            "PyTorch",
            "it is neither a dict nor the path of a file",
        ),
        (SMPv1(partitions=2, processes_per_host=16), "PyTorch", "SMP runs one rank per GPU"),
    ],
)
def test_what_sagemakers_sdk_would_refuse_late_or_drop(option, kind, text):
    terms = Terms(instance_groups=GROUPS) if isinstance(option, OnInstanceGroup) else None
    found = faults(option, kind=kind, uses_launcher=False, terms=terms)

    assert [True] == [text in each for each in found if "instance_type" not in each]


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
    (found,) = faults(MultiWorkerMirroredStrategy(), **old)
    new = {"uses_launcher": False, "framework_version": "2.3.0"}
    (warned,) = construction_warnings(job(SMPv1(partitions=2, processes_per_host=8), **new))

    assert (
        "framework_version is '2.8.0': SageMaker supports it only from TensorFlow 2.9 on." in found
    )
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
    with pytest.raises(OptionError, match="distribution is"):
        read_distribution(option)


def test_our_launcher_is_not_asked_by_a_pipeline():
    variable = SimpleNamespace(expr={"Get": "Parameters.On"})
    with pytest.raises(OptionError, match="a pipeline variable"):
        claim_for_launcher(read_distribution({"torch_distributed": {"enabled": variable}}))
    with pytest.raises(OptionError, match="a pipeline variable"):
        read_distribution({"smdist": {"dataparallel": {"enabled": variable}}})
