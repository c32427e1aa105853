# SPDX-License-Identifier: Apache-2.0
"""Typed options for the distributions of SageMaker's SDK.

The method `distribution()` of each option returns the dict that the SDK takes as `distribution=`:

    TorchDistributed()            {"torch_distributed": {"enabled": True}}
    MPI(processes_per_host=8)     {"mpi": {"enabled": True, "processes_per_host": 8}}

The source for the keys of these dicts is SageMaker Python SDK 2.257.7, read 2026-11-21. The table
in `planning/distribution_support.py` lists the frameworks and images that run each distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from sagemaker_dist.contract.unknown_option import KeywordOptions
from sagemaker_dist.errors import OptionError, raise_all

MOST_PROCESSES: Final = 1024


@runtime_checkable
class Strategy(Protocol):
    """Typed option that can be passed as `distribution=`, such as `DataParallel()` or `MPI()`."""

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switch(KeywordOptions):
    """Base of typed options for a single key of `distribution=`, such as `MPI` for "mpi".

    `distribution()` returns {key: {"enabled": True, ...}}. The inner dict also has the fields of
    the option, without those that are None or "".

    Attributes:
        key: Name of the key, such as "mpi".

    Raises:
        OptionError: A value has the wrong type; all faults are reported.
    """

    key: ClassVar[str]

    def __post_init__(self) -> None:
        raise_all(_faults(self))

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in values.items() if value not in (None, "")}
        return {self.key: {"enabled": True, **given}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDistributed(_Switch):
    """Option to start one rank per GPU with torchrun, also for scripts with DeepSpeed or FSDP.

    In the sagemaker-dist image, one rank is started on a host without GPUs.
    """

    key: ClassVar[str] = "torch_distributed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PyTorchDDP(_Switch):
    """Option to start one rank per GPU for torch's DistributedDataParallel.

    Attributes:
        custom_mpi_options: Further arguments of mpirun, with which AWS's image starts these ranks.
            The sagemaker-dist image has no MPI and refuses this option. Default "": no arguments.
    """

    key: ClassVar[str] = "pytorchddp"
    custom_mpi_options: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PyTorchXLA(_Switch):
    """Option to start ranks for torch on XLA in AWS's images.

    The estimator must also get the argument `compiler_config`."""

    key: ClassVar[str] = "pytorchxla"


@dataclass(frozen=True, slots=True, kw_only=True)
class MPI(_Switch):
    """Option to start ranks with mpirun in AWS's images, for example for Horovod.

    In the sagemaker-dist image, its launcher starts them without MPI, with Open MPI's variables.

    Attributes:
        processes_per_host: Ranks on each host, 1 to 1024. Default None: one rank.
        custom_mpi_options: Further arguments of mpirun; of these the sagemaker-dist image carries
            out -x NAME=VALUE and --verbose, and refuses others. Default "": no arguments.
    """

    key: ClassVar[str] = "mpi"
    processes_per_host: int | None = None
    custom_mpi_options: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServer(_Switch):
    """Option to train with TensorFlow's parameter servers."""

    key: ClassVar[str] = "parameter_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiWorkerMirroredStrategy(_Switch):
    """Option to train with TensorFlow's MultiWorkerMirroredStrategy.

    AWS's images support it from TensorFlow 2.9 on.
    """

    key: ClassVar[str] = "multi_worker_mirrored_strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SMDDP(_Switch):
    """Option to train with AWS's data parallel library (SMDDP) in AWS's images.

    In the sagemaker-dist image, this option has the effect of `DataParallel()`.

    Attributes:
        custom_mpi_options: Further arguments of mpirun; of these the sagemaker-dist image carries
            out -x NAME=VALUE and --verbose, and refuses others. Default "": no arguments.
    """

    key: ClassVar[str] = "dataparallel"
    custom_mpi_options: str = ""

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`."""
        return {"smdistributed": _Switch.distribution(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnInstanceGroup(KeywordOptions):
    """Distribution for one instance group of a job that has several groups.

    Attributes:
        strategy: `DataParallel(...)` or another typed option.
        group: Instance group whose hosts start ranks: an `InstanceGroup` of the estimator, or the
            name of the group. Hosts of other groups run the script in one process, without ranks.

    Raises:
        OptionError: `strategy` is not a typed option.
    """

    strategy: Strategy
    group: Any

    def __post_init__(self) -> None:
        raise_all(_group_faults(self.strategy))

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`.

        The dict has the keys of `strategy`, and the group in the list "instance_groups".
        """
        return {**self.strategy.distribution(), "instance_groups": [self.group]}


def is_pipeline_variable(value: object) -> bool:
    """Return whether a value is a pipeline variable of SageMaker's SDK.

    Such a variable, for example a parameter of a SageMaker pipeline, gets its value only when the
    pipeline runs.
    """
    return hasattr(value, "expr")


def _faults(option: _Switch) -> Iterator[OptionError]:
    name = type(option).__name__
    processes = getattr(option, "processes_per_host", None)
    is_fine = type(processes) is int and 1 <= processes <= MOST_PROCESSES
    if processes is not None and not is_pipeline_variable(processes) and not is_fine:
        yield OptionError(
            f"processes_per_host of {name} is {processes!r}",
            f"a host starts between 1 and {MOST_PROCESSES} ranks",
            f"Pass an integer from 1 to {MOST_PROCESSES}",
            about="processes_per_host",
        )
    further = getattr(option, "custom_mpi_options", "")
    if not isinstance(further, str) and not is_pipeline_variable(further):
        yield OptionError(
            f"custom_mpi_options of {name} is {further!r}",
            "it is appended to mpirun's command line and must be a str",
            "Pass one str such as '-x NCCL_DEBUG=INFO'",
            about="custom_mpi_options",
            kind="type",
        )


def _group_faults(strategy: Any) -> Iterator[OptionError]:
    is_one = isinstance(strategy, Strategy) and not isinstance(strategy, type)
    if isinstance(strategy, OnInstanceGroup) or not is_one:
        yield OptionError(
            f"strategy of OnInstanceGroup is {strategy!r}",
            "it must be an options object of sagemaker_dist, but not an OnInstanceGroup",
            "Pass DataParallel(), TorchDistributed() or another such object",
            about="strategy",
            kind="type",
        )
