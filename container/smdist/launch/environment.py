# SPDX-License-Identifier: Apache-2.0
"""Environment variables and command-line arguments of the user's script.

The variables SM_* are those of SageMaker's training toolkit 5.1.4 and of the SDK's ModelTrainer
3.27, plus SM_CHECKPOINT_DIR. SM_HOSTS names every host of the job; SM_HOST_COUNT,
SM_CURRENT_HOST_RANK and SM_MASTER_ADDR describe the hosts that train together. If a shell
cannot read a variable because of its name, a second one is set: SM_HP_BATCH-SIZE and
SM_HP_BATCH_SIZE.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import ModelParallel, World, spell
from sagemaker_dist.errors import LaunchError, OptionError
from smdist.config import MODEL_PARALLEL, RuntimeConfig
from smdist.launch.machine import HostResources
from smdist.tuning import write_tuning

_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_KEPT_MEMORY: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # glibc raises this limit itself, but no further
}


def call_arguments(config: RuntimeConfig) -> list[str]:
    """Return the script's command-line arguments, made from the user's hyperparameters.

    They have ModelTrainer's format if ModelTrainer sent the job, else the training toolkit's.
    """
    if config.texts is None:
        return script_arguments(config.hyperparameters)
    return trainer_arguments(config.texts)


def trainer_arguments(texts: Mapping[str, str]) -> list[str]:
    """Return the script's arguments `--key value` for a job that ModelTrainer sent.

    `texts` are the hyperparameters, undecoded, by name. Their order and values are unchanged.

    Raises:
        OptionError: A hyperparameter contains a NUL character, which no command line can pass.
    """
    for key, text in texts.items():
        _refuse_nul(key, text, text)
    return [part for key, text in texts.items() for part in (f"--{key}", text)]


def script_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the script's arguments `--key value`, in the format of SageMaker's training toolkit.

    A key of one letter becomes `-k value`. Arguments are sorted by key. `hyperparameters` are the
    decoded values, by name.

    Raises:
        OptionError: A hyperparameter contains a NUL character, which no command line can pass.
    """
    arguments: list[str] = []
    for key in sorted(hyperparameters):
        value = hyperparameters[key]
        arguments += [f"-{key}" if len(key) == 1 else f"--{key}", _argument(value)]
        _refuse_nul(key, arguments[-1], value)
    return arguments


def _refuse_nul(key: str, text: str, value: object) -> None:
    if "\0" in key + text:
        raise OptionError(
            f"the hyperparameter {key!r} is {value!r}",
            "a command line cannot contain a NUL character",
            "Remove the NUL character, or pass the value in a file of an input channel",
            about=("hyperparameters", key),
            kind="nul",
        )


def _argument(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return str(value)


def sm_environment(config: RuntimeConfig, machine: HostResources, world: World) -> dict[str, str]:
    """Return the variables SM_* and a few others of SageMaker that scripts read, by name.

    Args:
        config: This host's configuration.
        machine: Numbers of CPUs and GPUs of this host.
        world: The hosts that train together.
    """
    facts = _facts(config, machine)
    variables = {f"SM_{key.upper()}": _text(value) for key, value in facts.items()}
    variables |= _named("SM_CHANNEL", _channel_directories(config))
    variables |= _named("SM_HP", config.hyperparameters if config.texts is None else config.texts)
    variables |= {key: _text(value) for key, value in _model_trainer_facts(config, world).items()}
    variables["SM_HPS"] = _text(dict(config.hyperparameters))
    variables["SM_USER_ARGS"] = _text(call_arguments(config))
    variables["SM_TRAINING_ENV"] = _text(_training_env(config, facts, world))
    variables |= {"CURRENT_HOST": config.resources.current_host, "PYTHONUNBUFFERED": "1"}
    # already set if the local runner keeps checkpoints in another directory
    if "SM_CHECKPOINT_DIR" not in config.inherited:
        variables["SM_CHECKPOINT_DIR"] = str(config.base / "checkpoints")
    if config.source.region:
        variables["SAGEMAKER_REGION"] = config.source.region
    if config.job_name:
        variables["SAGEMAKER_JOB_NAME"] = config.job_name
    return variables


def _facts(config: RuntimeConfig, machine: HostResources) -> dict[str, Any]:
    """Return the values of the SM_* variables, by name: "num_gpus" for SM_NUM_GPUS.

    SM_TRAINING_ENV contains these values, too.
    """
    resources = config.resources
    return {
        "channels": sorted(config.channels),
        "current_host": resources.current_host,
        "current_instance_type": resources.instance_type,
        "framework_module": "smdist.launch.__main__:main",
        "framework_params": dict(config.framework_parameters),
        "hosts": resources.all_hosts,
        "input_config_dir": config.base / "input" / "config",
        "input_data_config": dict(config.channels),
        "input_dir": config.base / "input",
        "log_level": config.log_level,
        "model_dir": config.base / "model",
        "module_dir": config.source.submit_directory or config.code,
        "module_name": config.source.program.removesuffix(".py"),
        "network_interface_name": resources.interface,
        "num_cpus": machine.num_cpus,
        "num_gpus": machine.num_gpus,
        "num_neurons": 0,
        "output_data_dir": config.base / "output" / "data",
        "output_dir": config.base / "output",
        "output_intermediate_dir": config.base / "output" / "intermediate",
        "resource_config": dict(resources.document),
        "topology": resources.document.get("topology"),
        "user_entry_point": config.source.program,
    } | _group_facts(config)


def _group_facts(config: RuntimeConfig) -> dict[str, Any]:
    resources = config.resources
    with_ranks = config.distribution_groups
    if config.options and not with_ranks:  # every instance group is a world of its own
        with_ranks = (resources.group,) if resources.group else ()
    return {
        "current_instance_group": resources.group,
        "current_instance_group_hosts": resources.hosts,
        "distribution_instance_groups": with_ranks,
        "instance_groups": list(resources.groups),
        "instance_groups_dict": resources.groups,
        "is_hetero": len(resources.groups) > 1,
    }


def _model_trainer_facts(config: RuntimeConfig, world: World) -> dict[str, Any]:
    """Return the variables that the SDK's ModelTrainer sets and the training toolkit does not.

    `world` has the hosts that train together. The keys of the result are the variables' names.
    """
    return {
        "SM_CURRENT_HOST_RANK": world.hosts.index(config.resources.current_host),
        "SM_DISTRIBUTED_CONFIG": config.document,
        "SM_DISTRIBUTED_DRIVER_DIR": Path(__file__).parent,
        "SM_ENTRY_SCRIPT": config.source.program,
        "SM_HOST_COUNT": len(world.hosts),
        "SM_INPUT_DATA_DIR": config.base / "input" / "data",
        "SM_MASTER_ADDR": world.hosts[0],
        "SM_MASTER_PORT": config.port,
        "SM_OUTPUT_FAILURE": config.base / "output" / "failure",
        "SM_SOURCE_DIR": config.code,
    }


def _training_env(config: RuntimeConfig, facts: dict[str, Any], world: World) -> dict[str, Any]:
    shared = {key: value for key, value in facts.items() if key != "framework_params"}
    return shared | {
        "additional_framework_parameters": dict(config.framework_parameters),
        "channel_input_dirs": _channel_directories(config),
        "hyperparameters": dict(config.hyperparameters),
        "is_master": config.resources.current_host == world.hosts[0],
        "job_name": config.job_name,
        "master_hostname": world.hosts[0],
    }


def _channel_directories(config: RuntimeConfig) -> dict[str, str]:
    data = config.base / "input" / "data"
    return {name: str(data / name) for name in config.channels}


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment variable PREFIX_KEY for each key and value of `values`, by name.

    Shells read only letters, digits and `_` in a name. A key with other characters therefore gets
    a second variable, whose name has `_` in their place.
    """
    variables: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}_{key.upper()}"
        if "=" not in name:  # the name of an environment variable cannot contain "="
            variables[name] = _text(value)
        variables.setdefault(re.sub(r"[^A-Z0-9_]", "_", name), _text(value))
    return variables


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return "" if value is None else str(value)


def rank_environment(
    config: RuntimeConfig,
    machine: HostResources,
    world: World,
    addresses: Mapping[str, str],
    attempt: int = 0,
) -> dict[str, str]:
    """Return the variables, by name, that each rank of this host reads to set up its engine.

    In the rank, `smdist.config.read_rank_config` reads them.

    Args:
        config: This host's configuration.
        machine: Numbers of CPUs and GPUs of this host.
        world: The hosts that train together, and the number of ranks on each.
        addresses: IP address of each host, by name.
        attempt: Number of times that the ranks were started again.
    """
    host, interface = config.resources.current_host, config.resources.interface
    variables = {
        "SMDIST_ADDRESS": addresses[host],
        "SMDIST_HOST_LABEL": world.label(host),
        "SMDIST_HOST_ID": config.inherited.get("SMDIST_HOST_ID") or host,
        "SMDIST_INTERFACE": interface,
    }
    if config.secret_file:
        variables["SMDIST_SECRET_FILE"] = config.secret_file
    if config.options is None:
        return variables
    variables["SMDIST_MAX_RESTARTS"] = str(config.options.max_restarts)
    variables["SMDIST_RESTART_COUNT"] = str(attempt)
    variables["SMDIST_FUSION_BYTES"] = str(config.options.fusion_bytes)
    variables["SMDIST_TIMEOUT_SECONDS"] = str(config.options.timeout_seconds)
    variables["SMDIST_START_TIMEOUT_SECONDS"] = str(config.options.start_timeout_seconds)
    variables["SMDIST_SILENCE_SECONDS"] = str(config.options.silence_seconds)
    variables["SMDIST_INTEGRITY"] = config.options.integrity
    variables["SMDIST_ENCRYPT"] = str(int(config.options.encrypt))
    variables["SMDIST_GPU_COLLECTIVES"] = config.options.gpu_collectives
    variables |= write_tuning(config.options)
    if config.model is not None:
        variables[MODEL_PARALLEL] = spell(_with_plan(config.model, config.code))
    threads = config.inherited.get("OMP_NUM_THREADS")
    threads = threads or str(threads_per_rank(machine, world, addresses, host))
    defaults = {"OMP_NUM_THREADS": threads}
    if config.framework == "tensorflow":  # TensorFlow does not read OMP_NUM_THREADS
        defaults["TF_NUM_INTRAOP_THREADS"] = threads.partition(",")[0]
    if interface in {name for _, name in socket.if_nameindex()}:
        defaults |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    defaults |= kept_memory(config.inherited)
    return variables | {k: v for k, v in defaults.items() if k not in config.inherited}


def kept_memory(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables, by name, with which glibc keeps memory that a rank frees and takes again.

    By default, malloc gives memory at the end of the heap back to the kernel as soon as it is free.
    Temporary tensors of each step are there, such as those of an optimizer, so their pages fault
    again in each step. Up to 256 MiB are kept instead.

    The result is empty if one of the variables is inherited: it is the user's own setting.

    Args:
        inherited: Environment that the rank inherits.
    """
    return {} if _KEPT_MEMORY.keys() & inherited.keys() else dict(_KEPT_MEMORY)


def quiet_environment(config: RuntimeConfig) -> dict[str, str]:
    """Return variables that limit TensorFlow's log to warnings, by name.

    The result is empty if the ranks do not use TensorFlow, or if the user has set a log level.
    """
    if config.framework != "tensorflow" or _LOG_LEVEL in config.inherited:
        return {}
    return {_LOG_LEVEL: "1", "SMDIST_GUARD_QUIET": "1"}


def _with_plan(model: ModelParallel, code: Path) -> ModelParallel:
    """Return the model options with the plan file's path made absolute.

    `model.plan` is relative to the directory `code`. The script may change its working directory
    before the file is read.

    Raises:
        LaunchError: The file does not exist.
    """
    if model.plan is None:
        return model
    path = (code / model.plan).absolute()
    if not path.is_file():
        raise LaunchError(
            f"the option plan is {model.plan!r}",
            f"there is no such file in the code directory {code}",
            "Save the plan file in the source directory, and pass its path relative to this"
            " directory",
            about="plan",
            kind="missing_file",
        )
    return replace(model, plan=str(path))


def threads_per_rank(
    machine: HostResources, world: World, addresses: Mapping[str, str], host: str
) -> int:
    """Return the number of CPU threads for each rank: the CPUs divided by the machine's ranks.

    Hosts with loopback addresses are emulated on this machine, so the ranks of all of them count.

    Args:
        machine: Numbers of CPUs and GPUs of this machine.
        world: The hosts that train together, and the number of ranks on each.
        addresses: IP address of each host, by name.
        host: Name of this host.
    """
    sharing = 1
    if ip_address(addresses[host]).is_loopback:
        sharing = sum(ip_address(address).is_loopback for address in addresses.values())
    return max(1, machine.num_cpus // (sharing * world.processes_per_host))
