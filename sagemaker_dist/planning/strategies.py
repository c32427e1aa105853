# SPDX-License-Identifier: Apache-2.0
"""Who serves which key of `distribution=`: SageMaker's images by class, and ours.

One table: the checks refuse by it, and docs/distributions.md is printed from it.
What SageMaker's side does was read from, and tried with, SageMaker Python SDK
2.257.7 and sagemaker-training 5.1.4 on 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sagemaker_dist.catalog import LOCAL_PROCESS
from sagemaker_dist.contract.distribution import Distribution, is_on
from sagemaker_dist.contract.spelling import AWS, DATA, GROUPS, MODEL, MPI_OPTIONS, OURS, STOCK
from sagemaker_dist.contract.taking import taking_faults
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job

Served = Literal["runs", "ignored", "refused"]

GENERIC: Final = "Estimator"
TENSORFLOW: Final = "TensorFlow"
CLASSES: Final = ("PyTorch", "HuggingFace", TENSORFLOW, GENERIC)
_MODEL: Final = f"{AWS}.{MODEL}"
_TORCH: Final[Mapping[str, Served]] = {"PyTorch": "runs", "HuggingFace": "runs"}
_ALL: Final[Mapping[str, Served]] = {**_TORCH, TENSORFLOW: "runs"}
_RANKS: Final = "pass DataParallel() for a rank per GPU"
_TORCHRUN: Final = "it starts ranks of torch"
_WHOLE: Final = "the runtime of sagemaker_dist splits no models of TensorFlow"
_NO_XLA: Final = "the image of sagemaker_dist holds no XLA"
_NO_MPI: Final = "the image of sagemaker_dist has no MPI"
_THEIR_STRATEGY: Final = "it is a strategy of TensorFlow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One key of `distribution=`, and what comes of it.

    Attributes:
        option: The typed option that spells it.
        theirs: By class, what a job in SageMaker's image makes of it. What a
            class does not say is refused.
        why_not: Why our launcher does not start it on torch; "" where it does.
        mend: What to ask for instead, if there is anything.
        not_tensorflow: Why it does not on TensorFlow; "" where it does.
        tensorflow_mend: What to ask for instead there.
        note: What else is to know.
    """

    option: str
    theirs: Mapping[str, Served] = field(default_factory=dict)
    why_not: str = ""
    mend: str = ""
    not_tensorflow: str = ""
    tensorflow_mend: str = _RANKS
    note: str = ""

    def in_their_image(self, kind: str) -> Served:
        """What SageMaker's SDK and image make of it."""
        return self.theirs.get(kind, "refused")

    def in_our_image(self, kind: str) -> Served:
        """What our launcher makes of it."""
        return "refused" if self.refusal(kind) else "runs"

    def refusal(self, kind: str) -> str:
        """Why our launcher does not start it; "" where it does."""
        return self.not_tensorflow if kind == TENSORFLOW else self.why_not

    def instead(self, kind: str) -> str:
        """What to ask our launcher for instead, or ""."""
        return self.tensorflow_mend if kind == TENSORFLOW else self.mend


SUPPORT: Final[Mapping[str, Support]] = {
    OURS: Support(
        option="DataParallel, ModelParallel",
        note="`smdist.dataparallel` and `smdist.modelparallel`, always in an image that holds our"
        " runtime; with `TensorFlow` no `ModelParallel`",
    ),
    f"{AWS}.{DATA}": Support(
        option="SMDDP", theirs=_ALL, note="our image takes it for `DataParallel()`"
    ),
    _MODEL: Support(
        option="SMPv1, SMPv2",
        theirs=_ALL,
        not_tensorflow=_WHOLE,
        note="v1 beside `mpi`, v2 beside `torch_distributed` and with `PyTorch` alone; our image"
        " takes v1 for `ModelParallel`, and refuses v2",
    ),
    "torch_distributed": Support(
        option="TorchDistributed",
        theirs={**_TORCH, TENSORFLOW: "ignored"},
        not_tensorflow=_TORCHRUN,
        note="torchrun; DeepSpeed and FSDP are the script's own",
    ),
    "pytorchddp": Support(
        option="PyTorchDDP",
        theirs={**_TORCH, TENSORFLOW: "ignored"},
        not_tensorflow=_TORCHRUN,
        note="SageMaker's `PyTorch` takes it for `smdistributed.dataparallel`",
    ),
    "pytorchxla": Support(
        option="PyTorchXLA",
        theirs={**_TORCH, TENSORFLOW: "ignored"},
        why_not=_NO_XLA,
        not_tensorflow=_NO_XLA,
        note="needs a `compiler_config`",
    ),
    "mpi": Support(
        option="MPI",
        theirs=_ALL,
        why_not=f"{_NO_MPI}, its ranks are started by torchrun",
        not_tensorflow=f"{_NO_MPI}, its launcher starts the ranks",
        mend="pass {'torch_distributed': {'enabled': True}} for a rank per GPU",
    ),
    "parameter_server": Support(
        option="ParameterServer",
        theirs={"PyTorch": "ignored", "HuggingFace": "ignored", TENSORFLOW: "runs"},
        why_not=_THEIR_STRATEGY,
        mend=_RANKS,
        note="one chief with the script, a worker and a server on every host",
    ),
    "multi_worker_mirrored_strategy": Support(
        option="MultiWorkerMirroredStrategy",
        theirs={TENSORFLOW: "runs"},
        why_not=_THEIR_STRATEGY,
        mend=_RANKS,
        note="one process per host; in SageMaker's images from framework_version 2.9 on",
    ),
    GROUPS: Support(
        option="OnInstanceGroup",
        theirs=_ALL,
        note="beside one of the above; SageMaker's SDK sends it with `mpi` and"
        " `smdistributed.dataparallel` alone",
    ),
}


def asked_keys(asked: Distribution) -> list[str]:
    """The keys of SUPPORT that are on and that our launcher was not asked for."""
    keys = [key for key, part in asked.rest.items() if key != AWS and is_on(key, part)]
    strategies = asked.rest.get(AWS, {})
    return keys + [f"{AWS}.{name}" for name, part in strategies.items() if is_on(name, part)]


def our_image_faults(job: Job) -> Iterator[OptionError]:
    """What our launcher was asked for and does not start, by name."""
    asked = job.distribution
    if (fault := _launched_fault(job)) is not None:
        yield fault
        return
    keys = asked_keys(asked)
    if _MODEL in keys:  # who started it is no fault of its own
        keys = [key for key in keys if key not in ("mpi", *STOCK)]
    if _MODEL in keys and not asked.is_launched:
        keys.remove(_MODEL)
        yield from taking_faults({k: part for k, part in asked.rest.items() if is_on(k, part)})
        keys = [key for key in keys if key != GROUPS]
    for key in keys:
        support = SUPPORT[key]
        if key == GROUPS and keys != [GROUPS]:
            continue
        if key == GROUPS:
            what, why = "distribution names instance_groups", "none of its strategies is on"
            yield OptionError(what, why, "Add one, such as 'smdist': {'dataparallel': {}}")
        elif options := _mpi_options(asked, key):
            yield OptionError(
                f"distribution asks for {key!r} with custom_mpi_options {options!r}",
                "the launcher of sagemaker_dist starts ranks with torchrun and uses no MPI",
                "Leave custom_mpi_options out",
            )
        elif why := support.refusal(job.kind):
            yield OptionError(f"distribution asks for {key!r}", why, _mend(key, job))
        else:
            yield OptionError(
                f"distribution asks for {_launcher(asked)} and for {key!r}",
                "a job has one launcher",
                f"Leave {key!r} out",
            )


def _launcher(asked: Distribution) -> str:
    return "sagemaker_dist" if asked.ours is not None else repr(asked.stock)


def _mend(key: str, job: Job) -> str:
    """What to ask for instead, or which image serves it."""
    has_ranks = job.distribution.ours is not None and job.distribution.model is None
    instead = "" if has_ranks else SUPPORT[key].instead(job.kind)
    theirs = SUPPORT[key].in_their_image(job.kind) == "runs"
    if job.instance_type == LOCAL_PROCESS:
        image = "run it on SageMaker in its image (framework_version, py_version)"
    else:
        image = "name SageMaker's image by framework_version and py_version"
    ways = [instead, image if theirs else "", "leave it out"]
    text = ", or ".join(filter(None, ways))
    return text[0].upper() + text[1:]


def _mpi_options(asked: Distribution, key: str) -> Any:
    part = asked.rest[key] if key in STOCK else asked.rest.get(AWS, {}).get(DATA, {})
    return part.get(MPI_OPTIONS) if key in (*STOCK, f"{AWS}.{DATA}") else None


def _launched_fault(job: Job) -> OptionError | None:
    """What our launcher was asked for and starts for another framework alone."""
    asked = job.distribution
    if asked.model is not None and job.kind == TENSORFLOW:
        key, what = _MODEL, "ModelParallel"
    elif asked.stock is not None:
        key, what = asked.stock, repr(asked.stock)
    else:
        return None
    why = SUPPORT[key].refusal(job.kind)
    return OptionError(f"distribution asks for {what}", why, _mend(key, job)) if why else None
