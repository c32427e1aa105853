# SPDX-License-Identifier: Apache-2.0
"""Table of how each launcher treats each key of `distribution=`: runs, ignores or refuses the key.

The launcher depends on the image: SageMaker's images have SageMaker's launchers, and the
sagemaker-dist image has its own. The estimator class matters, too. The checks use this table, and
docs/distributions.md is generated from it. SageMaker's behaviour was tested, and read in the source
code of SageMaker Python SDK 2.257.7 and sagemaker-training 5.1.4, on 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sagemaker_dist.catalog import LOCAL_PROCESS
from sagemaker_dist.contract.distribution import Distribution, is_on
from sagemaker_dist.contract.distribution_keys import (
    AWS,
    DATA,
    GROUPS,
    LAUNCH_KEYS,
    MODEL,
    MPI_OPTIONS,
    SMDIST,
)
from sagemaker_dist.contract.mpi_takeover import MPI_KEY, mpi_faults, smddp_faults
from sagemaker_dist.contract.smp_takeover import takeover_faults
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job

Served = Literal["runs", "ignored", "refused"]

GENERIC: Final = "Estimator"
TENSORFLOW: Final = "TensorFlow"
CLASSES: Final = ("PyTorch", "HuggingFace", TENSORFLOW, GENERIC)
_MODEL: Final = f"{AWS}.{MODEL}"
_DATA: Final = f"{AWS}.{DATA}"
_TORCH: Final[Mapping[str, Served]] = {"PyTorch": "runs", "HuggingFace": "runs"}
_ALL: Final[Mapping[str, Served]] = {**_TORCH, TENSORFLOW: "runs"}
_RANKS: Final = "pass DataParallel() for one rank per GPU"
_TORCHRUN: Final = "it starts ranks of torch"
_NO_XLA: Final = "the image of sagemaker_dist has no XLA"
_TF_STRATEGY: Final = "it is a strategy of TensorFlow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Support of one key of `distribution=` by SageMaker's and by the sagemaker-dist launcher.

    Attributes:
        option: Name of the typed option for the key, such as "SMDDP".
        in_aws: How SageMaker's image treats the key ("runs", "ignored" or "refused"), by the name
            of the estimator class. A class that is missing here refuses the key.
        why_not: Reason why the sagemaker-dist launcher refuses the key with torch; "" if the
            launcher runs the key.
        hint: Alternative to the key with torch, or "".
        not_tensorflow: Reason why the sagemaker-dist launcher refuses the key with TensorFlow;
            "" if the launcher runs the key.
        tensorflow_hint: Alternative to the key with TensorFlow, or "".
        note: Remarks for docs/distributions.md.
    """

    option: str
    in_aws: Mapping[str, Served] = field(default_factory=dict)
    why_not: str = ""
    hint: str = ""
    not_tensorflow: str = ""
    tensorflow_hint: str = _RANKS
    note: str = ""

    def in_aws_image(self, kind: str) -> Served:
        """Return how SageMaker's image treats this key of `distribution=`.

        The result is "runs", "ignored" or "refused". `kind` is the name of the estimator class,
        such as "PyTorch".
        """
        return self.in_aws.get(kind, "refused")

    def with_launcher(self, kind: str) -> Served:
        """Return how the sagemaker-dist launcher treats this key of `distribution=`.

        The result is "runs" or "refused". `kind` is the name of the estimator class, such as
        "PyTorch".
        """
        return "refused" if self.refusal(kind) else "runs"

    def refusal(self, kind: str) -> str:
        """Return why the sagemaker-dist launcher does not support this key of `distribution=`.

        Returns "" if the launcher supports the key. `kind` is the name of the estimator class, such
        as "PyTorch".
        """
        return self.not_tensorflow if kind == TENSORFLOW else self.why_not

    def alternative(self, kind: str) -> str:
        """Return a hint that names an alternative to this key of `distribution=`, or "".

        The sagemaker-dist launcher supports the alternative. `kind` is the name of the estimator
        class, such as "PyTorch".
        """
        return self.tensorflow_hint if kind == TENSORFLOW else self.hint


SUPPORT: Final[Mapping[str, Support]] = {
    SMDIST: Support(
        option="DataParallel, ModelParallel",
        note="`smdist.dataparallel` and `smdist.modelparallel`, always in an image with the smdist"
        " runtime",
    ),
    f"{AWS}.{DATA}": Support(
        option="SMDDP",
        in_aws=_ALL,
        note="the sagemaker-dist image runs it as `DataParallel()`, and takes the same of"
        " `custom_mpi_options` as for `mpi`",
    ),
    _MODEL: Support(
        option="SMPv1, SMPv2",
        in_aws=_ALL,
        note="v1 with `mpi`, v2 with `torch_distributed` and only in `PyTorch`; the sagemaker-dist"
        " image runs v1 as `ModelParallel`, and refuses v2",
    ),
    "torch_distributed": Support(
        option="TorchDistributed",
        in_aws={**_TORCH, TENSORFLOW: "ignored"},
        not_tensorflow=_TORCHRUN,
        note="torchrun; DeepSpeed and FSDP are the script's own",
    ),
    "pytorchddp": Support(
        option="PyTorchDDP",
        in_aws={**_TORCH, TENSORFLOW: "ignored"},
        not_tensorflow=_TORCHRUN,
        note="SageMaker's `PyTorch` runs it as `smdistributed.dataparallel`",
    ),
    "pytorchxla": Support(
        option="PyTorchXLA",
        in_aws={**_TORCH, TENSORFLOW: "ignored"},
        why_not=_NO_XLA,
        not_tensorflow=_NO_XLA,
        note="needs a `compiler_config`",
    ),
    "mpi": Support(
        option="MPI",
        in_aws=_ALL,
        note="the sagemaker-dist image starts `processes_per_host` ranks (1 by default) without"
        " MPI, with Open MPI's variables `OMPI_COMM_WORLD_*`; of `custom_mpi_options` it takes"
        " `-x NAME=VALUE` and `--verbose`",
    ),
    "parameter_server": Support(
        option="ParameterServer",
        in_aws={"PyTorch": "ignored", "HuggingFace": "ignored", TENSORFLOW: "runs"},
        why_not=_TF_STRATEGY,
        hint=_RANKS,
        note="one chief with the script, a worker and a server on every host",
    ),
    "multi_worker_mirrored_strategy": Support(
        option="MultiWorkerMirroredStrategy",
        in_aws={TENSORFLOW: "runs"},
        why_not=_TF_STRATEGY,
        hint=_RANKS,
        note="one process per host; in SageMaker's images from framework_version 2.9 on",
    ),
    GROUPS: Support(
        option="OnInstanceGroup",
        in_aws=_ALL,
        note="with one of the above; SageMaker's SDK sends it only with `mpi` and"
        " `smdistributed.dataparallel`",
    ),
}


def active_keys(distribution: Distribution) -> list[str]:
    """Return the enabled keys in `distribution.rest`, the part that SageMaker's SDK gets.

    Examples are "mpi" and, for a key inside "smdistributed", "smdistributed.dataparallel".
    """
    rest = distribution.rest
    keys = [key for key, part in rest.items() if key != AWS and is_on(key, part)]
    strategies = rest.get(AWS, {})
    return keys + [f"{AWS}.{name}" for name, part in strategies.items() if is_on(name, part)]


def launcher_faults(job: Job) -> Iterator[OptionError]:
    """Yield a fault for each key of the distribution that the sagemaker-dist launcher refuses."""
    distribution = job.distribution
    if (fault := _launched_fault(job)) is not None:
        yield fault
        return
    keys = active_keys(distribution)
    if _MODEL in keys:  # no second fault for the key that would start AWS's library
        keys = [key for key in keys if key not in (MPI_KEY, *LAUNCH_KEYS)]
    if _MODEL in keys and not distribution.is_launched:
        keys.remove(_MODEL)
        yield from takeover_faults(
            {k: part for k, part in distribution.rest.items() if is_on(k, part)}
        )
        keys = [key for key in keys if key != GROUPS]
    if keys == [GROUPS]:
        what = "distribution has instance_groups"
        why = "no other key of distribution is enabled, so no launcher would start ranks"
        hint = "Add a key, such as 'smdist': {'dataparallel': {}}"
        yield OptionError(what, why, hint, about=("distribution", GROUPS), kind="missing")
    if keys == [MPI_KEY] and not distribution.is_launched:
        yield from mpi_faults(distribution.rest[MPI_KEY])
        return
    if _DATA in keys and (faults := [*smddp_faults(distribution.rest[AWS][DATA])]):
        yield from faults
        keys.remove(_DATA)
    yield from (_key_fault(job, key) for key in keys if key != GROUPS)


def _key_fault(job: Job, key: str) -> OptionError:
    """Return the error for a key of `distribution=` that the sagemaker-dist launcher refuses.

    The launcher refuses a key that it does not support and a key with options of mpirun. If two
    keys each start ranks, such as "smdist" and "torch_distributed", the second is refused.
    """
    distribution = job.distribution
    if options := _mpi_options(distribution, key):
        return OptionError(
            f"distribution requests {key!r} with custom_mpi_options {options!r}",
            "the launcher of sagemaker_dist starts ranks with torchrun and uses no MPI",
            "Leave custom_mpi_options out",
            about=("distribution", *key.split("."), "custom_mpi_options"),
            kind="unsupported",
        )
    if why := SUPPORT[key].refusal(job.kind):
        return OptionError(
            f"distribution requests {key!r}",
            why,
            _hint(key, job),
            about=("distribution", *key.split(".")),
            kind="unsupported",
        )
    return OptionError(
        f"distribution requests {_launcher(distribution)} and {key!r}",
        "a job has one launcher",
        f"Leave {key!r} out",
        about=("distribution", *key.split(".")),
        kind="conflict",
    )


def _launcher(distribution: Distribution) -> str:
    return "sagemaker_dist" if distribution.engine is not None else repr(distribution.sdk_key)


def _hint(key: str, job: Job) -> str:
    """Return a hint with alternatives to a key of `distribution=` that is refused."""
    has_ranks = job.distribution.engine is not None and job.distribution.model is None
    alternative = "" if has_ranks else SUPPORT[key].alternative(job.kind)
    runs_in_aws = SUPPORT[key].in_aws_image(job.kind) == "runs"
    if job.instance_type == LOCAL_PROCESS:
        image = "run the job on SageMaker in its image (pass framework_version and py_version)"
    else:
        image = "select SageMaker's image by framework_version and py_version"
    ways = [alternative, image if runs_in_aws else "", "leave it out"]
    text = ", or ".join(filter(None, ways))
    return text[0].upper() + text[1:]


def _mpi_options(distribution: Distribution, key: str) -> Any:
    return distribution.rest[key].get(MPI_OPTIONS) if key in LAUNCH_KEYS else None


def _launched_fault(job: Job) -> OptionError | None:
    """Return an error if the sagemaker-dist launcher cannot start ranks of the job's framework.

    The result is None if the launcher can start these ranks.
    """
    distribution = job.distribution
    if distribution.sdk_key is None:
        return None
    key, what = distribution.sdk_key, repr(distribution.sdk_key)
    why = SUPPORT[key].refusal(job.kind)
    return (
        OptionError(
            f"distribution requests {what}",
            why,
            _hint(key, job),
            about=("distribution", *key.split(".")),
            kind="unsupported",
        )
        if why
        else None
    )
