# SPDX-License-Identifier: Apache-2.0
"""What SageMaker tells a container, read once into frozen values.

The only reader of environment variables in `smdist`. Three processes ask, each
for its own part:

    read_runtime_config   the launcher: hosts, channels, hyperparameters, options
    read_guard_config     the small parent of each rank
    read_rank_config      the engine inside a rank, with or without our launcher

Where a job has several instance groups, its world is the group of this host:
ranks on unlike machines would wait for the slowest kind at every step.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse, parse_framework
from sagemaker_dist.errors import OptionError, raise_all
from smdist.files import Drivers, Resources, read_drivers, read_object, read_resources
from smdist.tuning import TuningConfig, option_faults, read_tuning
from smdist.variables import hosts_without_ranks, misspelt

PORT: Final = 7777
MODEL_PARALLEL: Final = "SMDIST_MODEL_PARALLEL"  # a document as on the wire
STOP_SECONDS: Final = 110  # SageMaker kills 120 s after SIGTERM
_WORLD: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torch's env:// needs all
_PREFIX: Final = "sagemaker_"
_TUNING: Final = "_tuning_objective_metric"  # a tuner's own note, unknown to scripts
_READ_HERE: Final = frozenset(
    f"{_PREFIX}{name}"
    for name in ("program", "submit_directory", "region", "job_name", "container_log_level")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the user's code lies.

    Attributes:
        program: The script, relative to the code directory.
        submit_directory: A directory, a tarball or an S3 URI; empty when the
            image brought the code.
        endpoint: An S3 endpoint other than AWS's, or None.
        directory: Where the code runs if that is a channel, or None.
        requirements: What pip installs, relative to the code; "" is nothing.
        needs_requirements: That file has to be there.
        installer: The SDK's script that installs them from AWS CodeArtifact, or None for pip.
    """

    program: str
    submit_directory: str = ""
    region: str | None = None
    endpoint: str | None = None
    directory: Path | None = None
    requirements: str = "requirements.txt"
    needs_requirements: bool = False
    installer: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """All that one host's launcher acts on.

    Attributes:
        base: SageMaker's directory, /opt/ml.
        channels: inputdataconfig.json by channel name.
        hyperparameters: The user's own, decoded.
        texts: The same as they came, in that order, where ModelTrainer sent them; its scripts
            get them so. None elsewhere.
        framework_parameters: `sagemaker_*` ones that nothing here reads.
        options: What our own document asks of ranks; `launch.request` adds what flags of
            SageMaker's SDK do. None is one plain process per host.
        model: How the model is split among them; `options` is its engine then. None for not.
        framework: What ranks train with; None asks what is installed.
        strategy: The key of a strategy of TensorFlow's own that is asked for, or None.
        warnings: What SageMaker's SDK asked for that means nothing here.
        document: The text of these two as it travelled; empty where flags asked.
        distribution_groups: The instance groups that alone start ranks; () is every group.
        port: Where ranks meet, on the first host.
        stop_seconds: Time ranks have between SIGTERM and SIGKILL.
        inherited: The environment of the launcher, handed on to ranks.
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
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def code(self) -> Path:
        """Where the user's code is placed and run."""
        return self.source.directory or self.base / "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What the parent of one rank knows.

    Attributes:
        rank: None outside a world of ranks.
        socket: Where the launcher listens, or None without one.
        directory: Where the script runs; it is also importable from there.
        is_quiet: What TensorFlow logs as it starts is not shown.
        inherited: The environment, handed on to the rank.
    """

    rank: int | None = None
    host_label: str
    socket: str | None = None
    directory: str | None = None
    is_quiet: bool = False
    stop_seconds: float = STOP_SECONDS
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """What the launcher tells a rank; all None under a plain torchrun.

    Attributes:
        address: This host's address, to bind lanes to.
        interface: This host's network interface.
        host_label: What messages call this host; its hostname by default.
        host_id: Ranks with the same one are on one host; None: find out.
        start_timeout_seconds: How long ranks wait for each other.
        secret_file: A file whose content every rank of the job shares.
        master_address: Where rank 0 runs, as torch has it.
        is_in_world: Whether this process was started as one rank of several
            that can meet, by our launcher or torchrun.
        rank: This rank's number in the job.
        size: How many ranks the job has.
        local_rank: This rank's number on its host.
        local_size: How many ranks its host has.
        master_port: Where rank 0 can be met, on its host.
        is_port_taken: torchrun itself listens there, for the store that torch uses.
        job_name: As SageMaker calls the job; "" where nobody does.
        tuning: How the engine divides its work.
        world_variables: Which of torch's variables for such a process are set.
        model_parallel: How the job asks to split the model; None where it does not.
        hosts_without_ranks: How many hosts run the script each alone; 0 where ranks do.
    """

    address: str | None = None
    interface: str | None = None
    host_label: str
    host_id: str | None = None
    fusion_bytes: int | None = None
    timeout_seconds: int | None = None
    start_timeout_seconds: int = DataParallel().start_timeout_seconds
    secret_file: Path | None = None
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


def read_base(environ: Mapping[str, str] | None = None) -> Path:
    """SageMaker's directory: /opt/ml unless SAGEMAKER_BASE_DIR says otherwise."""
    return Path(_environment(environ).get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def read_runtime_config(environ: Mapping[str, str] | None = None) -> RuntimeConfig:
    """Read the environment and `<base>/input/config/*.json`.

    Raises:
        LaunchError: A file is unreadable or contradicts itself.
        DistError: Our own options are wrong or newer than this image.
    """
    environ = _environment(environ)
    folder = read_base(environ) / "input" / "config"
    raw = read_object(folder / "hyperparameters.json")
    decoded = {key: _decode(value) for key, value in raw.items()}
    drivers = read_drivers(read_base(environ))
    document = _document(raw, drivers)
    asked = parse(document) if document else None
    users = {key: value for key, value in raw.items() if _is_users(key)}
    return RuntimeConfig(
        base=read_base(environ),
        resources=read_resources(folder / "resourceconfig.json"),
        source=_source(decoded, environ, drivers),
        channels=read_object(folder / "inputdataconfig.json"),
        hyperparameters={key: decoded[key] for key in users},
        texts={k: _undecoded(v) for k, v in users.items()} if drivers else None,
        framework_parameters={k: v for k, v in decoded.items() if _is_frameworks(k)},
        options=asked.engine if isinstance(asked, ModelParallel) else asked,
        model=asked if isinstance(asked, ModelParallel) else None,
        framework=parse_framework(document) if document else None,
        document=document,
        job_name=str(decoded.get("sagemaker_job_name") or environ.get("TRAINING_JOB_NAME", "")),
        log_level=_log_level(decoded.get("sagemaker_container_log_level", 20)),
        port=int(_number(environ, "SMDIST_MASTER_PORT") or PORT),
        stop_seconds=read_stop_seconds(environ),
        secret_file=environ.get("SMDIST_SECRET_FILE") or None,
        inherited=environ,
    )


def read_stop_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Time that processes have between SIGTERM and SIGKILL.

    Raises:
        OptionError: SMDIST_STOP_SECONDS is no such number.
    """
    return _number(_environment(environ), "SMDIST_STOP_SECONDS", STOP_SECONDS) or 0


def read_guard_config(environ: Mapping[str, str] | None = None) -> GuardConfig:
    """Read what the launcher left for the parent of a rank."""
    environ = _environment(environ)
    rank = _number(environ, "RANK")
    return GuardConfig(
        rank=None if rank is None else int(rank),
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        socket=environ.get("SMDIST_GUARD_SOCKET") or None,
        directory=environ.get("SMDIST_GUARD_DIRECTORY") or None,
        is_quiet=bool(environ.get("SMDIST_GUARD_QUIET")),
        stop_seconds=read_stop_seconds(environ),
        inherited=environ,
    )


def read_rank_config(environ: Mapping[str, str] | None = None) -> RankConfig:
    """Read what the launcher told this rank; nothing of it needs to be there.

    Raises:
        OptionError: A number is none, or out of the range of its option, or a name is misspelt.
        SkewError: The options for splitting the model are not of this release.
    """
    environ = _environment(environ)
    raise_all((*misspelt(environ), *option_faults(environ)))
    start = _integer(environ, "SMDIST_START_TIMEOUT_SECONDS")
    secret = environ.get("SMDIST_SECRET_FILE")
    return RankConfig(
        address=environ.get("SMDIST_ADDRESS") or None,
        interface=environ.get("SMDIST_INTERFACE") or None,
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        host_id=environ.get("SMDIST_HOST_ID") or None,
        fusion_bytes=_integer(environ, "SMDIST_FUSION_BYTES"),
        timeout_seconds=_integer(environ, "SMDIST_TIMEOUT_SECONDS"),
        start_timeout_seconds=start or DataParallel().start_timeout_seconds,
        secret_file=Path(secret) if secret else None,
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
    )


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
            "it takes a number that is not negative",
            "Correct it, or leave it out",
        )
    return value


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    value = _number(environ, name)
    if value is not None and not value.is_integer():
        raise OptionError(
            f"the environment variable {name} is {environ[name]!r}",
            "it takes a whole number",
            "Correct it, or leave it out",
        )
    return None if value is None else int(value)


def _model_parallel(document: str | None) -> ModelParallel | None:
    """What the launcher wrote; of a document without a model nothing is split."""
    where = f"the environment variable {MODEL_PARALLEL}"
    asked = parse(document, where) if document else None
    return asked if isinstance(asked, ModelParallel) else None


def _decode(value: Any) -> Any:
    """Undo the SDK's JSON encoding; what is no JSON is a string that came as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _undecoded(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _document(raw: Mapping[str, Any], drivers: Drivers | None) -> str:
    if drivers is None:
        return _undecoded(raw.get(KEY, ""))
    if KEY in raw:
        raise OptionError(
            f"the hyperparameter {KEY} is there beside a distributed= of ModelTrainer",
            "each asks for ranks, and a job has one launcher",
            f"Keep distributed=, and leave {KEY} out",
        )
    return drivers.document


def _is_users(key: str) -> bool:
    return not key.startswith(_PREFIX) and key != _TUNING


def _is_frameworks(key: str) -> bool:
    return key.startswith(_PREFIX) and key not in _READ_HERE and key != KEY


def _source(
    decoded: Mapping[str, Any], environ: Mapping[str, str], drivers: Drivers | None
) -> Source:
    region = decoded.get("sagemaker_region")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("S3_ENDPOINT_URL")
    source = Source(
        program=str(decoded.get("sagemaker_program") or ""),
        submit_directory=str(decoded.get("sagemaker_submit_directory") or ""),
        region=region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        endpoint=endpoint or None,
    )
    return source if drivers is None else _channel_source(source, environ, drivers)


def _channel_source(source: Source, environ: Mapping[str, str], drivers: Drivers) -> Source:
    """What ModelTrainer's files say of the code; its shell may have done half of it already."""
    is_prepared = bool(environ.get("SMDIST_PREPARED"))
    if drivers.code is not None:
        tarball = "" if is_prepared else str(drivers.tarball or "")
        source = replace(source, submit_directory=tarball, directory=drivers.code)
    return replace(
        source,
        program=drivers.program,
        requirements="" if is_prepared else drivers.requirements,
        needs_requirements=drivers.needs_requirements,
        installer=drivers.installer if environ.get("CA_REPOSITORY_ARN") else None,
    )


def _log_level(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 20
