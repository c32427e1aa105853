# SPDX-License-Identifier: Apache-2.0
"""Read what this host must start: from our hyperparameter, or from the flags of SageMaker's SDK v2.

    distribution=                    what starts
    DataParallel(...)                ranks, with these options
    {"torch_distributed": ...}       ranks, with the defaults of DataParallel()
    {"pytorchddp": ...}              the same
    {"multi_worker_mirrored_strategy": ...}
                                     one rank per host, with TF_CONFIG
    {"parameter_server": ...}        the script on the first host, servers of TensorFlow on all
    {"smdistributed":
      {"dataparallel": ...}}         ranks, with the defaults of DataParallel()
    ModelParallel(...)               ranks, and the options to split the model
    {"smdistributed":
      {"modelparallel": ...},
     "mpi": ...}                     the same, from the parameters of SMP v1
    {..., "instance_groups": [...]}  ranks on hosts of that group; elsewhere one plain process
    nothing, or what is not enabled  one plain process

Any other distribution needs software that this image lacks, and is refused by name. The names
of the hyperparameters are those of SageMaker's SDK 2.257.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel
from sagemaker_dist.contract.sdk_flags import (
    FLAGS,
    GROUPS_KEY,
    STRATEGY_FLAGS,
    flagged_framework,
    is_flag_on,
)
from sagemaker_dist.errors import LaunchError, OptionError, closest, raise_all
from smdist.config import RuntimeConfig
from smdist.container_files import Resources
from smdist.launch.smp_v1_request import asks_to_split, split_request, split_request_faults

SERVED: Final = tuple(FLAGS.values())
STRATEGIES: Final = tuple(STRATEGY_FLAGS.values())
MPI: Final = "sagemaker_mpi_enabled"
_RANKS: Final = "Pass distribution=DataParallel() or {'torch_distributed': {'enabled': True}}"
REFUSED: Final = {  # name -> why, hint
    MPI: ("this image starts ranks with torchrun and has no MPI", _RANKS),
    "sagemaker_pytorch_xla_multi_worker_enabled": ("this image has no PyTorch XLA", _RANKS),
}
COMPILER: Final = "sagemaker_training_compiler_enabled"
MPI_OPTIONS: Final = "sagemaker_distributed_dataparallel_custom_mpi_options"


def as_requested(config: RuntimeConfig) -> RuntimeConfig:
    """Return the job with the options that this host acts on; None means one plain process.

    Raises:
        OptionError: A hyperparameter asks for software that this image lacks, or contradicts
            another; all faults are reported.
        LaunchError: The request names an instance group that the job does not have.
    """
    raise_all(_faults(config))
    options, model, warnings = config.options, config.model, config.warnings
    if any(_is_on(config, flag) for flag in SERVED):
        options = DataParallel()
    if asks_to_split(config):
        model, warnings = split_request(config)
        options = model.engine
    strategy = next((key for key, flag in STRATEGY_FLAGS.items() if _is_on(config, flag)), None)
    if strategy is not None:
        options = DataParallel(processes_per_host=1)
    named = _named_groups(config) or ()
    _require_groups(named, config.resources)
    if named and not _is_among(config.resources, named):
        options, model, strategy = None, None, None
    return replace(
        config,
        options=options,
        model=model,
        framework=config.framework or flagged_framework(config.framework_parameters),
        strategy=strategy,
        warnings=warnings,
        distribution_groups=named,
    )


def _faults(config: RuntimeConfig) -> Iterator[OptionError]:
    for flag in (*SERVED, *STRATEGIES, *REFUSED):
        yield from _flag_faults(config, flag)
    yield from _strategy_faults(config)
    yield from _compiler_faults(config)
    value = config.framework_parameters.get(MPI_OPTIONS)
    if value:
        yield OptionError(
            f"the hyperparameter {MPI_OPTIONS} is {value!r}",
            "this image starts ranks with torchrun and uses no MPI",
            "Leave custom_mpi_options out",
        )
    yield from split_request_faults(config)
    yield from _group_faults(config)


def _flag_faults(config: RuntimeConfig, flag: str) -> Iterator[OptionError]:
    is_on = _is_on(config, flag)
    if is_on is None:
        yield _no_switch(config, flag)
    elif is_on and config.document:
        yield OptionError(
            f"the hyperparameters {KEY} and {flag} are both there",
            "each asks for ranks, and a job has one launcher",
            f"Keep {KEY}, which distribution=DataParallel() writes, and leave {flag} out",
        )
    elif is_on and flag == MPI and asks_to_split(config):
        return  # our launcher replaces mpirun
    elif is_on and flag in REFUSED:
        why, hint = REFUSED[flag]
        yield OptionError(f"the hyperparameter {flag} is true", why, hint)


def _strategy_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    on = [flag for flag in (*SERVED, *STRATEGIES) if _is_on(config, flag)]
    if len(on) > 1 and any(flag in STRATEGIES for flag in on):
        yield OptionError(
            f"the hyperparameters {' and '.join(on)} are true",
            "each asks for processes of its own, and a job has one launcher",
            "Keep one",
        )
    if config.framework == "tensorflow" and (config.model or asks_to_split(config)):
        yield OptionError(
            f"the hyperparameter {KEY} asks to split a model of TensorFlow",
            "this runtime splits models of torch",
            "Pass distribution=DataParallel()",
        )


def _compiler_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    """Yield the faults of compiler options, which ask for no ranks and may stand beside ranks."""
    is_on = _is_on(config, COMPILER)
    if is_on is None:
        yield _no_switch(config, COMPILER)
    elif is_on:
        yield OptionError(
            f"the hyperparameter {COMPILER} is true",
            "this image has no SageMaker Training Compiler",
            "Leave compiler_config out, or use an image of AWS",
        )


def _no_switch(config: RuntimeConfig, flag: str) -> OptionError:
    return OptionError(
        f"the hyperparameter {flag} is {config.framework_parameters[flag]!r}",
        "it takes true or false",
        "Correct it, or leave it out",
    )


def _group_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    named = _named_groups(config)
    if named is None:
        yield OptionError(
            f"the hyperparameter {GROUPS_KEY} is {config.framework_parameters[GROUPS_KEY]!r}",
            "it takes a JSON list of names",
            'Write it as ["group"]',
        )
    elif named and not _asks(config):
        yield OptionError(
            f"the hyperparameter {GROUPS_KEY} is {list(named)!r}",
            "it says where ranks start, and nothing asks for ranks",
            f"{_RANKS} with it, or leave instance_groups out",
        )


def _asks(config: RuntimeConfig) -> bool:
    """Tell whether any hyperparameter asks for ranks, valid or not."""
    flags = any(_is_on(config, flag) for flag in (*SERVED, *STRATEGIES, *REFUSED))
    return bool(config.document) or flags or asks_to_split(config)


def _is_on(config: RuntimeConfig, flag: str) -> bool | None:
    return is_flag_on(config.framework_parameters.get(flag))


def _named_groups(config: RuntimeConfig) -> tuple[str, ...] | None:
    """Return the groups where ranks start; () is everywhere, None is not a list of names."""
    value: Any = config.framework_parameters.get(GROUPS_KEY)
    try:
        names = json.loads(value or "[]") if isinstance(value, str) else value
    except ValueError:
        return None
    if not isinstance(names, list | None) or any(not isinstance(name, str) for name in names or ()):
        return None
    return tuple(names or ())


def _require_groups(named: tuple[str, ...], resources: Resources) -> None:
    unknown = [name for name in named if name not in resources.groups]
    if not unknown:
        return
    there = ", ".join(map(repr, resources.groups)) or "none"
    raise LaunchError(
        f"the hyperparameter {GROUPS_KEY} names {', '.join(map(repr, unknown))}",
        f"the instance groups in resourceconfig.json are {there}",
        closest(unknown[0], resources.groups) if resources.groups else "Leave instance_groups out",
    )


def _is_among(resources: Resources, named: tuple[str, ...]) -> bool:
    """Tell whether this host is in one of the groups; a job's only group has every host."""
    return len(resources.groups) == 1 or resources.group in named
