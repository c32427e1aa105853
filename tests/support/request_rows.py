# SPDX-License-Identifier: Apache-2.0
"""Jobs with golden requests: classes, images, distributions and instances.

Versions of SageMaker's images are those that SageMaker's SDK 2.257.7 accepts for
a distribution.
"""

from __future__ import annotations

from typing import Any, Final

from sagemaker import estimator, huggingface, pytorch, tensorflow
from sagemaker.instance_group import InstanceGroup

from sagemaker_dist import (
    MPI,
    SMDDP,
    DataParallel,
    Estimator,
    HuggingFace,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    OnInstanceGroup,
    ParameterServer,
    PyTorch,
    PyTorchDDP,
    PyTorchXLA,
    SMPv1,
    SMPv2,
    TensorFlow,
    TorchDistributed,
)
from sagemaker_dist.contract.distribution_keys import AWS, DATA, GROUPS, MODEL, SMDIST
from sagemaker_dist.packaging import default_tag

REGISTRY: Final = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
TAG: Final = default_tag("torch").partition(":")[2]
TENSORFLOW_TAG: Final = default_tag("tensorflow").partition(":")[2]
CLASSES: Final = {
    "PyTorch": (PyTorch, pytorch.PyTorch),
    "HuggingFace": (HuggingFace, huggingface.HuggingFace),
    "TensorFlow": (TensorFlow, tensorflow.TensorFlow),
    "Estimator": (Estimator, estimator.Estimator),
}

THEIRS: Final = "SageMaker's"  # image by framework_version, or by name for a generic estimator
IMAGES: Final = {
    THEIRS: None,
    "ours": None,
    "ours by name": f"{REGISTRY}/sagemaker-dist:{TAG}",
    "another": f"{REGISTRY}/mine:1",
}
THEIR_NAME: Final = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"

TRAIN: Final = InstanceGroup("train", "ml.p4d.24xlarge", 2)
PREPARE: Final = InstanceGroup("prepare", "ml.c5.9xlarge", 1)
INSTANCES: Final[dict[str, dict[str, Any]]] = {
    name: {"instance_type": kind, "instance_count": 2}
    for name, kind in {
        "c5": "ml.c5.9xlarge",
        "g5": "ml.g5.xlarge",
        "p4d": "ml.p4d.24xlarge",
        "p5": "ml.p5.48xlarge",
        "trn1": "ml.trn1.32xlarge",
        "gb200": "ml.p6e-gb200.36xlarge",
    }.items()
} | {"groups": {"instance_groups": [TRAIN, PREPARE]}}
RESOURCES: Final = {  # instances as a request spells them
    name: {"InstanceGroups": [each._to_request_dict() for each in given["instance_groups"]]}
    if "instance_groups" in given
    else {"InstanceType": given["instance_type"], "InstanceCount": given["instance_count"]}
    for name, given in INSTANCES.items()
}

_SMP1: Final = SMPv1(pipeline_parallel_degree=2, microbatches=4, ddp=True, processes_per_host=8)
DISTRIBUTIONS: Final[dict[str, tuple[str | None, Any]]] = {  # key of SUPPORT, value
    "none": (None, None),
    "DataParallel": (SMDIST, DataParallel()),
    "smdist dict": (SMDIST, {"smdist": {"dataparallel": {}}}),
    "ModelParallel": (SMDIST, ModelParallel(pipeline_parallel_degree=2, microbatches=4)),
    "modelparallel dict": (SMDIST, {"smdist": {"modelparallel": {"pipeline_parallel_degree": 3}}}),
    "SMDDP": (f"{AWS}.{DATA}", SMDDP()),
    "SMDDP, MPI options": (f"{AWS}.{DATA}", SMDDP(custom_mpi_options="-x NCCL_DEBUG=INFO")),
    "SMPv1": (f"{AWS}.{MODEL}", _SMP1),
    "SMPv2": (f"{AWS}.{MODEL}", SMPv2(hybrid_shard_degree=2)),
    "TorchDistributed": ("torch_distributed", TorchDistributed()),
    "PyTorchDDP": ("pytorchddp", PyTorchDDP()),
    "PyTorchXLA": ("pytorchxla", PyTorchXLA()),
    "MPI": ("mpi", MPI(processes_per_host=4)),
    "ParameterServer": ("parameter_server", ParameterServer()),
    "MultiWorkerMirroredStrategy": (
        "multi_worker_mirrored_strategy",
        MultiWorkerMirroredStrategy(),
    ),
    "DataParallel, group": (GROUPS, OnInstanceGroup(strategy=DataParallel(), group=TRAIN)),
    "SMDDP, group": (GROUPS, OnInstanceGroup(strategy=SMDDP(), group=TRAIN)),
    "TorchDistributed, group": (GROUPS, OnInstanceGroup(strategy=TorchDistributed(), group=TRAIN)),
    "MPI, group": (GROUPS, OnInstanceGroup(strategy=MPI(), group=TRAIN)),
    "group alone": (GROUPS, {"instance_groups": [TRAIN]}),
}
ROWS: Final = [
    (kind, image, distribution)
    for kind in CLASSES
    for image in IMAGES
    for distribution in DISTRIBUTIONS
    if (kind, image) != ("Estimator", "ours")  # no default image exists
]

_DDP: Final = {"framework_version": "2.2.0", "py_version": "py310"}
_NEURON: Final = {"framework_version": "1.11.0", "py_version": "py38"}
_VERSIONS: Final[dict[str, dict[str, dict[str, Any]]]] = {  # by class, then by distribution
    "PyTorch": {
        "": {"framework_version": "2.8.0", "py_version": "py312"},
        "SMDDP": _DDP,
        "SMDDP, MPI options": _DDP,
        "SMDDP, group": _DDP,
        "SMPv1": {"framework_version": "1.13.1", "py_version": "py39"},
        "SMPv2": {"framework_version": "2.3.1", "py_version": "py311"},
        "PyTorchDDP": _DDP,
        "PyTorchXLA": {
            "framework_version": "1.13.1",
            "py_version": "py39",
            "compiler_config": pytorch.TrainingCompilerConfig(),
        },
    },
    "HuggingFace": {
        "": {
            "transformers_version": "4.28.1",
            "pytorch_version": "2.0.0",
            "py_version": "py310",
        },
        "PyTorchXLA": {
            "transformers_version": "4.21.1",
            "pytorch_version": "1.11.0",
            "py_version": "py38",
            "compiler_config": huggingface.TrainingCompilerConfig(),
        },
    },
    "TensorFlow": {"": {"framework_version": "2.11.0", "py_version": "py39"}},
    "Estimator": {"": {"image_uri": THEIR_NAME}},
}


def image_arguments(kind: str, image: str, distribution: str, instances: str) -> dict[str, Any]:
    """Return the arguments that name the image of a row."""
    if image != THEIRS:
        named: dict[str, Any] = {"image_uri": IMAGES[image]} if IMAGES[image] else {}
        if (image, distribution) == ("another", "MultiWorkerMirroredStrategy"):
            named |= _VERSIONS[kind][""] if kind == "TensorFlow" else {}  # required by the SDK
        return {**named, "py_version": None} if kind == "HuggingFace" else named
    if (kind, instances) == ("PyTorch", "trn1") and distribution in ("none", "TorchDistributed"):
        return _NEURON
    versions = _VERSIONS[kind]
    return versions.get(distribution, versions[""])
