# SPDX-License-Identifier: Apache-2.0
"""Configuration of a container, read once from SageMaker's files and the environment.

No other module of `smdist` reads environment variables. Three processes read their own part:

    read_runtime_config   the launcher: hosts, channels, hyperparameters, options
    read_guard_config     the guard, the small parent process of each rank
    read_rank_config      the engine inside a rank, with or without smdist's launcher

If a job has several instance groups, each group trains without the others. Ranks on different
kinds of machines would wait for the slowest kind at every step.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse, parse_framework
from sagemaker_dist.contract.option_variables import USD_PER_HOUR, misspelt, value_faults
from sagemaker_dist.errors import OptionError, SkewError, raise_all
from smdist.code_source import Source, code_source
from smdist.container_files import (
    Drivers,
    Resources,
    decode_value,
    log_level,
    read_drivers,
    read_object,
    read_resources,
)
from smdist.debug_files import output_data, state_file
from smdist.environment_checks import DEVICE_WAITS, device_wait_faults, hosts_without_ranks
from smdist.tuning import TuningConfig, read_tuning

PORT: Final = 7777  # default of the rendezvous port on the first host
MODEL_PARALLEL: Final = "SMDIST_MODEL_PARALLEL"  # carries a document in the hyperparameter format
STOP_SECONDS: Final = 110  # SageMaker sends SIGKILL 120 s after SIGTERM
# torch's rendezvous method env:// needs all of these variables
_WORLD: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIX: Final = "sagemaker_"
_TUNING: Final = "_tuning_objective_metric"  # a tuning job adds it; scripts do not know it
_READ_HERE: Final = frozenset(
    f"{_PREFIX}{name}"
    for name in ("program", "submit_directory", "region", "job_name", "container_log_level")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Configuration of one host's launcher, read from SageMaker's files and the environment.

    Attributes:
        base: SageMaker's directory, by default /opt/ml.
        resources: The hosts of the job, from resourceconfig.json.
        source: Location of the user's script.
        channels: The input channels of inputdataconfig.json, by name.
        hyperparameters: The user's own hyperparameters, decoded from JSON, by name.
        texts: The user's hyperparameters as undecoded texts, by name; None if ModelTrainer did
            not send the job.
        framework_parameters: Hyperparameters named `sagemaker_*` that no other attribute
            contains, decoded, by name.
        options: Data parallel options; None if each host starts one plain process.
        model: Model parallel options; None if the model is not split.
        framework: The framework that ranks train with, "torch" or "tensorflow"; None to detect
            the installed one.
        strategy: Name of the requested tf.distribute strategy in `distribution`, or None.
        warnings: Sentences about requests of SageMaker's SDK that have no effect here.
        document: JSON text of smdist's own hyperparameter, from which `options` and `model` were
            read; empty if the job has none.
        distribution_groups: Names of the instance groups that start ranks; () if all groups do.
        job_name: SageMaker's name of the job; "" if unknown.
        log_level: Python's logging level for SM_LOG_LEVEL; 20 is INFO.
        port: The rendezvous port on the first host.
        stop_seconds: Seconds between SIGTERM and SIGKILL for ranks.
        secret_file: Path of a file with the secret that all ranks share, or None.
        secret: The secret itself, from SMDIST_SECRET, or None.
        job_arn: SageMaker's ARN of the job; "" if unknown.
        inherited: The environment of the launcher, which ranks inherit.
    """

    base: Path
    resources: Resources
    source: Source
    channels: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] | None = None
    framework_parameters: Mapping[str, Any] = field(default_factory=dict)
    options: DataParallel | None = None
    model: ModelParallel | None = None
    framework: str | None = None
    strategy: str | None = None
    warnings: tuple[str, ...] = ()
    document: str = ""
    distribution_groups: tuple[str, ...] = ()
    job_name: str = ""
    log_level: int = 20
    port: int = PORT
    stop_seconds: float = STOP_SECONDS
    secret_file: str | None = None
    secret: str | None = field(default=None, repr=False)
    job_arn: str = ""
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def code(self) -> Path:
        """Directory of the user's code, which is also the working directory of the script."""
        return self.source.directory or self.base / "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Configuration of the guard, the parent process of one rank.

    Attributes:
        rank: The rank's number; None for a plain process that is no rank of a job.
        host_label: Name of this host in messages.
        socket: Path of the Unix socket at which the launcher listens, or None without a launcher.
        directory: The working directory of the script, also added to the script's import path;
            None for the working directory of the guard.
        is_quiet: True if TensorFlow's start-up log is hidden.
        stop_seconds: Seconds between SIGTERM and SIGKILL for the rank.
        state_file: File for the kernel state of a rank that does not run; None for no file.
        is_first: True for the first rank of its host, whose guard watches the launcher, too.
        inherited: The environment of the guard, which the rank inherits.
    """

    rank: int | None = None
    host_label: str
    socket: str | None = None
    directory: str | None = None
    is_quiet: bool = False
    stop_seconds: float = STOP_SECONDS
    state_file: Path | None = None
    is_first: bool = True
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """Configuration of a rank, from its environment; None for a variable that is not set.

    Attributes:
        address: IP address of this host at which other ranks reach this rank.
        interface: Name of the network interface of this host.
        host_label: Name of this host in messages; by default its hostname.
        host_id: Identity of the host, equal for all its ranks; None to detect it.
        fusion_bytes: Largest size of a gradient bucket in bytes.
        timeout_seconds: Seconds that an operation waits for a peer.
        start_timeout_seconds: Seconds that ranks wait for each other at the start.
        silence_seconds: Seconds after which a host that answers nothing counts as lost.
        integrity: Check of frames between hosts: "off", "crc32c" or "mac".
        encrypt: True if TLS encrypts the connections between hosts.
        gpu_collectives: How collectives on GPU tensors travel within a host: "auto", "nccl" or
            "staged".
        secret_file: Path of a file with the secret that all ranks of the job share.
        secret: The secret itself, from SMDIST_SECRET.
        attempt: Number of times that the launcher has started the ranks again; 0 at first.
        has_guard: True if smdist's launcher started the ranks, each under a rank guard.
        output_data: Directory of the job's output data; None without smdist's launcher.
        master_address: Address of rank 0's host, torch's MASTER_ADDR.
        is_in_world: True if a launcher has set all of torch's rendezvous variables, so that
            this process is a rank that can find the others.
        rank: This rank's number in the job.
        size: Number of ranks of the job.
        local_rank: This rank's number on its host.
        local_size: Number of ranks on its host.
        master_port: The rendezvous port on rank 0's host, torch's MASTER_PORT.
        is_port_taken: True if torchrun itself listens at `master_port`, for torch's store.
        job_name: SageMaker's name of the job; "" if unknown.
        tuning: Options for how the engine divides its work.
        world_variables: Names of torch's rendezvous variables that are set.
        model_parallel: The job's options for splitting the model; None if it is not split.
        hosts_without_ranks: Number of hosts of a job without ranks. 0 on all hosts but the first,
            for a job with ranks, and for a single host.
        elastic_socket: Path of the Unix socket at which the launcher of an elastic job listens;
            None if the job is not elastic.
        ended_hosts_file: Path of a file in which the launcher writes the addresses of hosts whose
            launcher has ended; None if it does not.
        device_wait: What wait() blocks until the results of an operation on a device's tensors
            are there: the current "stream", where the device can do so, or always the "host".
    """

    address: str | None = None
    interface: str | None = None
    host_label: str
    host_id: str | None = None
    fusion_bytes: int | None = None
    timeout_seconds: int | None = None
    start_timeout_seconds: int = DataParallel().start_timeout_seconds
    silence_seconds: int = DataParallel().silence_seconds
    integrity: str = DataParallel().integrity
    encrypt: bool = DataParallel().encrypt
    gpu_collectives: str = DataParallel().gpu_collectives
    secret_file: Path | None = None
    secret: str | None = field(default=None, repr=False)
    attempt: int = 0
    has_guard: bool = False
    output_data: Path | None = None
    master_address: str = "127.0.0.1"
    is_in_world: bool = False
    rank: int | None = None
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    master_port: int | None = None
    is_port_taken: bool = False
    job_name: str = ""
    tuning: TuningConfig = field(default_factory=TuningConfig)
    world_variables: tuple[str, ...] = ()
    model_parallel: ModelParallel | None = None
    hosts_without_ranks: int = 0
    elastic_socket: Path | None = None
    ended_hosts_file: Path | None = None
    device_wait: str = DEVICE_WAITS[0]


def read_base(environ: Mapping[str, str] | None = None) -> Path:
    """Return SageMaker's directory: SAGEMAKER_BASE_DIR, or /opt/ml if it is not set.

    `environ` is os.environ by default.
    """
    return Path(_environment(environ).get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def read_runtime_config(environ: Mapping[str, str] | None = None) -> RuntimeConfig:
    """Read the launcher's configuration from the environment and `<base>/input/config/*.json`.

    `environ` is os.environ by default.

    Raises:
        LaunchError: A file is unreadable or contradicts itself.
        DistError: smdist's own options are wrong, or newer than this image.
    """
    environ = _environment(environ)
    folder = read_base(environ) / "input" / "config"
    raw = read_object(folder / "hyperparameters.json")
    decoded = {key: decode_value(value) for key, value in raw.items()}
    drivers = read_drivers(read_base(environ))
    document = _document(raw, drivers)
    requested = parse(document) if document else None
    users = {key: value for key, value in raw.items() if _is_users(key)}
    return RuntimeConfig(
        base=read_base(environ),
        resources=read_resources(folder / "resourceconfig.json"),
        source=code_source(decoded, environ, drivers),
        channels=read_object(folder / "inputdataconfig.json"),
        hyperparameters={key: decoded[key] for key in users},
        texts={k: _undecoded(v) for k, v in users.items()} if drivers else None,
        framework_parameters={k: v for k, v in decoded.items() if _is_frameworks(k)},
        options=requested.engine if isinstance(requested, ModelParallel) else requested,
        model=requested if isinstance(requested, ModelParallel) else None,
        framework=parse_framework(document) if document else None,
        document=document,
        job_name=str(decoded.get("sagemaker_job_name") or environ.get("TRAINING_JOB_NAME", "")),
        log_level=log_level(decoded.get("sagemaker_container_log_level", 20)),
        port=int(_number(environ, "SMDIST_MASTER_PORT") or PORT),
        stop_seconds=read_stop_seconds(environ),
        secret_file=environ.get("SMDIST_SECRET_FILE") or None,
        secret=environ.get("SMDIST_SECRET") or None,
        job_arn=environ.get("TRAINING_JOB_ARN", ""),
        inherited=environ,
    )


def read_stop_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds between SIGTERM and SIGKILL: SMDIST_STOP_SECONDS, or 110 if not set.

    `environ` is os.environ by default.

    Raises:
        OptionError: SMDIST_STOP_SECONDS is not a number, or is negative.
    """
    return _number(_environment(environ), "SMDIST_STOP_SECONDS", STOP_SECONDS) or 0


def read_usd_per_hour(environ: Mapping[str, str] | None = None) -> float | None:
    """Return the price of all hosts of the job: SMDIST_USD_PER_HOUR, or None if not set.

    The price is in US dollars per hour. `environ` is os.environ by default.

    Raises:
        OptionError: SMDIST_USD_PER_HOUR is not a number, or is negative.
    """
    return _number(_environment(environ), USD_PER_HOUR)


def read_fault_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the path in SMDIST_FAULT_FILE; None if this variable is not set.

    A rank that ends with an exception writes a description of the exception to this file.
    `environ` is os.environ by default.
    """
    path = _environment(environ).get("SMDIST_FAULT_FILE")
    return Path(path) if path else None


def read_timeline_variables(environ: Mapping[str, str] | None = None) -> tuple[str | None, bool]:
    """Return the path in HOROVOD_TIMELINE, and whether HOROVOD_TIMELINE_MARK_CYCLES is on.

    The path is None if the variable is not set, or is DYNAMIC: then start_timeline() begins the
    timeline. `environ` is os.environ by default. Variables: Horovod 0.28, "Analyze Performance".
    """
    environ = _environment(environ)
    path = environ.get("HOROVOD_TIMELINE", "")
    marks_cycles = environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0")
    return None if path in ("", "DYNAMIC") else path, marks_cycles


def read_secret_variables(
    environ: Mapping[str, str] | None = None,
) -> tuple[Path | None, str | None]:
    """Return the path in SMDIST_SECRET_FILE and the secret in SMDIST_SECRET, each None if not set.

    `environ` is os.environ by default.
    """
    environ = _environment(environ)
    path = environ.get("SMDIST_SECRET_FILE")
    return Path(path) if path else None, environ.get("SMDIST_SECRET") or None


def read_guard_config(environ: Mapping[str, str] | None = None) -> GuardConfig:
    """Read the configuration of a rank's guard, the parent process of the rank.

    `environ` is os.environ by default.
    """
    environ = _environment(environ)
    return GuardConfig(
        rank=_integer(environ, "RANK"),
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        socket=environ.get("SMDIST_GUARD_SOCKET") or None,
        directory=environ.get("SMDIST_GUARD_DIRECTORY") or None,
        is_quiet=bool(environ.get("SMDIST_GUARD_QUIET")),
        stop_seconds=read_stop_seconds(environ),
        state_file=state_file(read_base(environ), environ),
        is_first=not _integer(environ, "LOCAL_RANK"),
        inherited=environ,
    )


def read_rank_config(environ: Mapping[str, str] | None = None) -> RankConfig:
    """Read this rank's configuration from the environment; every variable is optional.

    `environ` is os.environ by default.

    Raises:
        OptionError: A value is not a number or out of its option's range, or the name of a
            variable is misspelt; all faults are reported.
        SkewError: The model parallel options were written by an incompatible release.
    """
    environ = _environment(environ)
    raise_all((*misspelt(environ), *value_faults(environ), *device_wait_faults(environ)))
    start = _integer(environ, "SMDIST_START_TIMEOUT_SECONDS")
    secret_file, secret = read_secret_variables(environ)
    return RankConfig(
        address=environ.get("SMDIST_ADDRESS") or None,
        interface=environ.get("SMDIST_INTERFACE") or None,
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        host_id=environ.get("SMDIST_HOST_ID") or None,
        fusion_bytes=_integer(environ, "SMDIST_FUSION_BYTES"),
        timeout_seconds=_integer(environ, "SMDIST_TIMEOUT_SECONDS"),
        start_timeout_seconds=start or DataParallel().start_timeout_seconds,
        silence_seconds=_integer(environ, "SMDIST_SILENCE_SECONDS")
        or DataParallel().silence_seconds,
        integrity=environ.get("SMDIST_INTEGRITY") or DataParallel().integrity,
        encrypt=environ.get("SMDIST_ENCRYPT") == "1",
        gpu_collectives=environ.get("SMDIST_GPU_COLLECTIVES") or DataParallel().gpu_collectives,
        secret_file=secret_file,
        secret=secret,
        attempt=_integer(environ, "SMDIST_RESTART_COUNT") or 0,
        has_guard=bool(environ.get("SMDIST_GUARD_SOCKET")) and start is not None,
        output_data=output_data(read_base(environ), environ),
        master_address=environ.get("MASTER_ADDR") or "127.0.0.1",
        is_in_world=all(environ.get(name) for name in _WORLD),
        rank=_integer(environ, "RANK"),
        size=_integer(environ, "WORLD_SIZE"),
        local_rank=_integer(environ, "LOCAL_RANK"),
        local_size=_integer(environ, "LOCAL_WORLD_SIZE"),
        master_port=_integer(environ, "MASTER_PORT"),
        is_port_taken=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job_name=environ.get("TRAINING_JOB_NAME", ""),
        tuning=read_tuning(environ),
        world_variables=tuple(name for name in _WORLD if environ.get(name)),
        model_parallel=_model_parallel(environ.get(MODEL_PARALLEL)),
        hosts_without_ranks=hosts_without_ranks(environ),
        elastic_socket=_path(environ, "SMDIST_ELASTIC_SOCKET"),
        ended_hosts_file=_path(environ, "SMDIST_ENDED_HOSTS_FILE"),
        device_wait=environ.get("SMDIST_DEVICE_WAIT") or DEVICE_WAITS[0],
    )


def renumber_rank(rank: int, size: int) -> None:
    """Set RANK and WORLD_SIZE of this process, whose place in an elastic job has changed.

    Args:
        rank: New number of this rank.
        size: New number of ranks.
    """
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size)})


def _environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return dict(os.environ) if environ is None else environ


def _number(environ: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise OptionError(
            f"the environment variable {name} is {text!r}",
            "it must be a number that is not negative",
            "Set it to such a number, or unset it to use the default",
            about=name,
        )
    return value


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    value = environ.get(name)
    return Path(value) if value else None


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    value = _number(environ, name)
    if value is not None and not value.is_integer():
        raise OptionError(
            f"the environment variable {name} is {environ[name]!r}",
            "it must be a whole number",
            "Set it to a whole number, or unset it to use the default",
            about=name,
        )
    return None if value is None else int(value)


def _model_parallel(document: str | None) -> ModelParallel | None:
    """Return the model parallel options from SMDIST_MODEL_PARALLEL's JSON text `document`.

    Return None if the text is missing or contains no model parallel options.
    """
    where = f"the environment variable {MODEL_PARALLEL}"
    try:
        options = parse(document, where) if document else None
    except SkewError as error:
        error.about = MODEL_PARALLEL, *error.about
        raise
    return options if isinstance(options, ModelParallel) else None


def _undecoded(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _document(raw: Mapping[str, Any], drivers: Drivers | None) -> str:
    if drivers is None:
        return _undecoded(raw.get(KEY, ""))
    if KEY in raw:
        raise OptionError(
            f"the job has both the hyperparameter {KEY} and distributed= of ModelTrainer",
            "each of them requests ranks, and a job has one launcher",
            f"Keep distributed=, and remove the hyperparameter {KEY}",
            about=KEY,
            kind="conflict",
        )
    return drivers.document


def _is_users(key: str) -> bool:
    return not key.startswith(_PREFIX) and key != _TUNING


def _is_frameworks(key: str) -> bool:
    return key.startswith(_PREFIX) and key not in _READ_HERE and key != KEY
