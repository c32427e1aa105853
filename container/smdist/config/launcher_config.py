# SPDX-License-Identifier: Apache-2.0
"""Configuration of a host's launcher: hosts, channels, hyperparameters, options.

Sources are SageMaker's files below `<base>/input/config`, the request of ModelTrainer if there is
one, and the environment, which ranks inherit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse, parse_framework
from sagemaker_dist.errors import OptionError
from smdist.code_source import Source, code_source
from smdist.config.environment_variables import (
    STOP_SECONDS,
    environment,
    read_base,
    read_number,
    read_stop_seconds,
)
from smdist.container_files import (
    Drivers,
    Resources,
    decode_value,
    log_level,
    read_drivers,
    read_object,
    read_resources,
)

PORT: Final = 7777  # default of the rendezvous port on the first host
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


def read_runtime_config(environ: Mapping[str, str] | None = None) -> RuntimeConfig:
    """Read the launcher's configuration from the environment and `<base>/input/config/*.json`.

    `environ` is os.environ by default.

    Raises:
        LaunchError: A file is unreadable or contradicts itself.
        DistError: smdist's own options are wrong, or newer than this image.
    """
    environ = environment(environ)
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
        port=int(read_number(environ, "SMDIST_MASTER_PORT") or PORT),
        stop_seconds=read_stop_seconds(environ),
        secret_file=environ.get("SMDIST_SECRET_FILE") or None,
        secret=environ.get("SMDIST_SECRET") or None,
        job_arn=environ.get("TRAINING_JOB_ARN", ""),
        inherited=environ,
    )


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
