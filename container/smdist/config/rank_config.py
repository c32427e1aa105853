# SPDX-License-Identifier: Apache-2.0
"""Configuration of the engine inside a rank, with or without smdist's launcher.

The launcher writes a job's options into variables of its ranks. A rank that another launcher has
started, such as torchrun, reads the same variables: a user may set them, and each has a default.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.contract import DataParallel, ModelParallel, parse
from sagemaker_dist.contract.option_variables import misspelt, value_faults
from sagemaker_dist.errors import SkewError, raise_all
from smdist.config.environment_variables import (
    environment,
    read_base,
    read_integer,
    read_path,
    read_secret_variables,
    set_variables,
)
from smdist.debug_files import output_data
from smdist.environment_checks import DEVICE_WAITS, device_wait_faults, hosts_without_ranks
from smdist.tuning import TuningConfig, read_tuning

MODEL_PARALLEL: Final = "SMDIST_MODEL_PARALLEL"  # carries a document in the hyperparameter format
# torch's rendezvous method env:// needs all of these variables
_WORLD: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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


def read_rank_config(environ: Mapping[str, str] | None = None) -> RankConfig:
    """Read this rank's configuration from the environment; every variable is optional.

    `environ` is os.environ by default.

    Raises:
        OptionError: A value is not a number or out of its option's range, or the name of a
            variable is misspelt; all faults are reported.
        SkewError: The model parallel options were written by an incompatible release.
    """
    environ = environment(environ)
    raise_all((*misspelt(environ), *value_faults(environ), *device_wait_faults(environ)))
    start = read_integer(environ, "SMDIST_START_TIMEOUT_SECONDS")
    secret_file, secret = read_secret_variables(environ)
    return RankConfig(
        address=environ.get("SMDIST_ADDRESS") or None,
        interface=environ.get("SMDIST_INTERFACE") or None,
        host_label=environ.get("SMDIST_HOST_LABEL") or socket.gethostname(),
        host_id=environ.get("SMDIST_HOST_ID") or None,
        fusion_bytes=read_integer(environ, "SMDIST_FUSION_BYTES"),
        timeout_seconds=read_integer(environ, "SMDIST_TIMEOUT_SECONDS"),
        start_timeout_seconds=start or DataParallel().start_timeout_seconds,
        silence_seconds=read_integer(environ, "SMDIST_SILENCE_SECONDS")
        or DataParallel().silence_seconds,
        integrity=environ.get("SMDIST_INTEGRITY") or DataParallel().integrity,
        encrypt=environ.get("SMDIST_ENCRYPT") == "1",
        gpu_collectives=environ.get("SMDIST_GPU_COLLECTIVES") or DataParallel().gpu_collectives,
        secret_file=secret_file,
        secret=secret,
        attempt=read_integer(environ, "SMDIST_RESTART_COUNT") or 0,
        has_guard=bool(environ.get("SMDIST_GUARD_SOCKET")) and start is not None,
        output_data=output_data(read_base(environ), environ),
        master_address=environ.get("MASTER_ADDR") or "127.0.0.1",
        is_in_world=all(environ.get(name) for name in _WORLD),
        rank=read_integer(environ, "RANK"),
        size=read_integer(environ, "WORLD_SIZE"),
        local_rank=read_integer(environ, "LOCAL_RANK"),
        local_size=read_integer(environ, "LOCAL_WORLD_SIZE"),
        master_port=read_integer(environ, "MASTER_PORT"),
        is_port_taken=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job_name=environ.get("TRAINING_JOB_NAME", ""),
        tuning=read_tuning(environ),
        world_variables=tuple(name for name in _WORLD if environ.get(name)),
        model_parallel=_model_parallel(environ.get(MODEL_PARALLEL)),
        hosts_without_ranks=hosts_without_ranks(environ),
        elastic_socket=read_path(environ, "SMDIST_ELASTIC_SOCKET"),
        ended_hosts_file=read_path(environ, "SMDIST_ENDED_HOSTS_FILE"),
        device_wait=environ.get("SMDIST_DEVICE_WAIT") or DEVICE_WAITS[0],
    )


def renumber_rank(rank: int, size: int) -> None:
    """Set RANK and WORLD_SIZE of this process, whose place in an elastic job has changed.

    Args:
        rank: New number of this rank.
        size: New number of ranks.
    """
    set_variables({"RANK": str(rank), "WORLD_SIZE": str(size)})


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
