# SPDX-License-Identifier: Apache-2.0
"""Decision from the job's hyperparameters which processes this host must start.

smdist writes the value of the estimator's argument `distribution` into one hyperparameter;
SageMaker's SDK v2 writes it into several. This host starts for each value:

    distribution=                    processes
    DataParallel(...)                ranks, with these options
    {"torch_distributed": ...}       ranks, with the defaults of DataParallel()
    {"pytorchddp": ...}              ranks, with the defaults of DataParallel()
    {"multi_worker_mirrored_strategy": ...}
                                     one rank per host, with TF_CONFIG
    {"parameter_server": ...}        the script on the first host, TensorFlow's servers on all
    {"smdistributed":
      {"dataparallel": ...}}         ranks, with the defaults of DataParallel()
    ModelParallel(...)               ranks, and the options to split the model
    {"smdistributed":
      {"modelparallel": ...},
     "mpi": ...}                     ranks, and the options made from SMP v1's parameters
    {"mpi": ...}                     ranks without MPI, with Open MPI's variables
    {..., "instance_groups": [...]}  ranks on hosts of these groups; elsewhere one plain process
    nothing, or not enabled          one plain process

Any other distribution needs software that this image lacks, and raises an error that names it.
The names of the hyperparameters are those of SageMaker's SDK 2.257.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel
from sagemaker_dist.contract.keras_limits import keras_faults
from sagemaker_dist.contract.option_variables import (
    conflict_faults,
    misspelt,
    value_faults,
    with_variables,
)
from sagemaker_dist.contract.sdk_flags import (
    FLAGS,
    GROUPS_KEY,
    MPI_FLAG,
    STRATEGY_FLAGS,
    flagged_framework,
    is_flag_on,
)
from sagemaker_dist.errors import LaunchError, OptionError, closest, raise_all, within
from smdist.config import RuntimeConfig
from smdist.container_files import Resources
from smdist.launch.mpi_request import (
    mpi_request_faults,
    requested_processes,
    requests_mpi,
    with_mpi_variables,
)
from smdist.launch.smp_v1_request import requests_split, split_request, split_request_faults

SERVED: Final = tuple(FLAGS.values())
STRATEGIES: Final = tuple(STRATEGY_FLAGS.values())
_RANKS: Final = "Pass distribution=DataParallel() or {'torch_distributed': {'enabled': True}}"
REFUSED: Final = {  # hyperparameter -> (why it is refused, hint)
    "sagemaker_pytorch_xla_multi_worker_enabled": ("this image has no PyTorch XLA", _RANKS),
}
COMPILER: Final = "sagemaker_training_compiler_enabled"


def resolve_request(config: RuntimeConfig) -> RuntimeConfig:
    """Return `config` with the options that were requested by hyperparameters of SageMaker's SDK.

    The field `options` of the result is None if this host must start one plain process, not ranks.

    Raises:
        OptionError: A hyperparameter needs software that this image lacks, or contradicts
            another, or an environment variable of an option is wrong; all faults are reported.
        LaunchError: The request names an instance group that the job does not have.
    """
    raise_all(_faults(config))
    config = with_mpi_variables(config)
    options, model, warnings = config.options, config.model, config.warnings
    if any(_is_on(config, flag) for flag in SERVED):
        options = DataParallel()
    if requests_mpi(config) and not config.document:
        options = DataParallel(processes_per_host=requested_processes(config))
    if requests_split(config):
        model, warnings = split_request(config)
        options = model.engine
    strategy = next((key for key, flag in STRATEGY_FLAGS.items() if _is_on(config, flag)), None)
    if strategy is not None:
        options = DataParallel(processes_per_host=1)
    if options is not None:
        raise_all(conflict_faults(options, config.inherited))
        options = with_variables(options, config.inherited)
        model = replace(model, engine=options) if model else None
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
    yield from split_request_faults(config)
    yield from mpi_request_faults(config)
    yield from _group_faults(config)
    if _requests_ranks(config):
        yield from misspelt(config.inherited)
        yield from value_faults(config.inherited)


def _flag_faults(config: RuntimeConfig, flag: str) -> Iterator[OptionError]:
    is_on = _is_on(config, flag)
    if is_on is None:
        yield _no_switch(config, flag)
    elif is_on and config.document:
        yield OptionError(
            f"the job has both hyperparameters {KEY} and {flag}",
            "each of them requests ranks, and a job has one launcher",
            f"Keep {KEY}, which distribution=DataParallel() writes, and remove {flag}",
            about=flag,
            kind="conflict",
        )
    elif is_on and flag in REFUSED:
        why, hint = REFUSED[flag]
        yield OptionError(
            f"the hyperparameter {flag} is true", why, hint, about=flag, kind="unsupported"
        )


def _strategy_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    on = [flag for flag in (*SERVED, *STRATEGIES) if _is_on(config, flag)]
    if len(on) > 1 and any(flag in STRATEGIES for flag in on):
        yield OptionError(
            f"the hyperparameters {' and '.join(on)} are true",
            "each of them requests processes of its own, and a job has one launcher",
            "Enable only one of these distributions",
            about=on[0],
            kind="conflict",
        )
    if config.framework == "tensorflow" and config.model is not None:
        yield from within(keras_faults(config.model), KEY)


def _compiler_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    """Yield the faults of the flag that turns on SageMaker Training Compiler.

    This image lacks the compiler, so the flag may only be false or missing.
    """
    is_on = _is_on(config, COMPILER)
    if is_on is None:
        yield _no_switch(config, COMPILER)
    elif is_on:
        yield OptionError(
            f"the hyperparameter {COMPILER} is true",
            "this image has no SageMaker Training Compiler",
            "Leave compiler_config out, or use an image of AWS",
            about=COMPILER,
            kind="unsupported",
        )


def _no_switch(config: RuntimeConfig, flag: str) -> OptionError:
    return OptionError(
        f"the hyperparameter {flag} is {config.framework_parameters[flag]!r}",
        "it must be true or false",
        "Set it to true or false, or leave it out",
        about=flag,
    )


def _group_faults(config: RuntimeConfig) -> Iterator[OptionError]:
    named = _named_groups(config)
    if named is None:
        yield OptionError(
            f"the hyperparameter {GROUPS_KEY} is {config.framework_parameters[GROUPS_KEY]!r}",
            "it must be a JSON list of names",
            'Write it as ["group"]',
            about=GROUPS_KEY,
        )
    elif named and not _requests_ranks(config):
        yield OptionError(
            f"the hyperparameter {GROUPS_KEY} is {list(named)!r}",
            "it names the groups that start ranks, and no hyperparameter requests ranks",
            f"{_RANKS} together with instance_groups, or leave instance_groups out",
            about=GROUPS_KEY,
            kind="missing",
        )


def _requests_ranks(config: RuntimeConfig) -> bool:
    """Return True if a hyperparameter requests ranks, even if this image refuses the request."""
    flags = any(_is_on(config, flag) for flag in (*SERVED, *STRATEGIES, *REFUSED, MPI_FLAG))
    return bool(config.document) or flags or requests_split(config)


def _is_on(config: RuntimeConfig, flag: str) -> bool | None:
    return is_flag_on(config.framework_parameters.get(flag))


def _named_groups(config: RuntimeConfig) -> tuple[str, ...] | None:
    """Return the names of the instance groups that start ranks; () if all groups do.

    Return None if the hyperparameter with these names is not a list of strings.
    """
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
    present = ", ".join(map(repr, resources.groups)) or "none"
    raise LaunchError(
        f"the hyperparameter {GROUPS_KEY} names {', '.join(map(repr, unknown))}",
        f"the instance groups in resourceconfig.json are {present}",
        closest(unknown[0], resources.groups) if resources.groups else "Leave instance_groups out",
        about=GROUPS_KEY,
        kind="unknown" if resources.groups else "missing",
    )


def _is_among(resources: Resources, named: tuple[str, ...]) -> bool:
    """Return True if this host is in one of the instance groups `named`.

    The result is also True if the job has only one group, because every host is in it.
    """
    return len(resources.groups) == 1 or resources.group in named
