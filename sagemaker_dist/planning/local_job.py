# SPDX-License-Identifier: Apache-2.0
"""Plan of a local job, made from a CreateTrainingJob request.

Each emulated host has a directory like /opt/ml, an address, and one launcher, which runs in a
process (local_process) or in a container (local, local_gpu):

                directory and address            directory and address
    process     hosts/algo-1, 127.0.0.1          hosts/algo-2, 127.0.0.2      ...
    container   hosts/algo-1, algo-1             hosts/algo-2, algo-2         ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL
from sagemaker_dist.contract import KEY, DataParallel, host_faults, parse_engine, parse_framework
from sagemaker_dist.contract.option_variables import with_variables
from sagemaker_dist.contract.sdk_flags import flagged_framework, flagged_ranks, requests_ranks
from sagemaker_dist.errors import OptionError, raise_all
from sagemaker_dist.planning.local_channel import LocalChannel, plan_channels
from sagemaker_dist.planning.locations import FILE, directory_of

SUBMIT_DIRECTORY: Final = "sagemaker_submit_directory"  # hyperparameters of SageMaker's toolkit
PROGRAM: Final = "sagemaker_program"
REGION: Final = "us-east-1"  # any region, because scripts expect one
CONTAINER_ROOT: Final = PurePosixPath("/opt/ml")
_GROUP: Final = "homogeneousCluster"  # SageMaker's name for a job's only group


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHost:
    """Emulated host of a local job.

    Attributes:
        label: Name of the host in messages and directories, such as "algo-1".
        address: Address by which other hosts connect: a loopback address, or the label.
    """

    label: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """Code of the user on this machine.

    Attributes:
        folder: Directory of the entry point.
        only: Name of the single file in `folder` that the job gets; None for the whole folder.
        dependencies: Files and directories that the job gets next to the entry point.
    """

    folder: Path
    only: str | None = None
    dependencies: tuple[Path, ...] = ()

    def request(self) -> dict[str, Any]:
        """Return this object as a dict, for the field LocalSource of a local job's request.

        CreateTrainingJob of SageMaker's API has no such field.
        """
        dependencies = [str(each) for each in self.dependencies]
        return {"Folder": str(self.folder), "Only": self.only, "Dependencies": dependencies}

    @classmethod
    def parse(cls, part: Mapping[str, Any] | None) -> LocalSource | None:
        """Return the LocalSource for `part`, a dict from `request()`; None if `part` is None."""
        if part is None:
            return None
        dependencies = tuple(Path(each) for each in part["Dependencies"])
        return cls(folder=Path(part["Folder"]), only=part["Only"], dependencies=dependencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """Plan of a local job: all facts that the process running it needs.

    Attributes:
        name: Name of the job.
        instance_type: "local_process", "local" or "local_gpu".
        hosts: Emulated hosts.
        processes_per_host: Ranks on each host; None if the launcher decides.
        hyperparameters: Hyperparameters by name, as SageMaker writes them.
        environment: Environment variables by name.
        channels: Input channels.
        output: Directory in which <name>/output/model.tar.gz is written; None for the job's own
            folder.
        checkpoints: Directory of the checkpoints, which all hosts share; None for a directory in
            the job's own folder.
        checkpoint_folder: Path of the checkpoints on each host, relative to /opt/ml.
        compress: True to write the model as model.tar.gz, False to write a directory.
        max_run_seconds: Longest duration in seconds, after which the job is stopped.
        source: Code of the user; None if the hyperparameter sagemaker_submit_directory names it.
        image: Image of the containers; "" for processes.
        entrypoint: Command that replaces the image's entry point, or None.
        arguments: Arguments that replace "train", or None.
        isolated: True if containers can connect only to each other.
        max_restarts: Most restarts of the ranks after a failure.
    """

    name: str
    instance_type: str
    hosts: tuple[LocalHost, ...]
    processes_per_host: int | None
    hyperparameters: dict[str, str]
    environment: dict[str, str]
    channels: tuple[LocalChannel, ...]
    output: str | None
    checkpoints: str | None
    checkpoint_folder: str
    compress: bool
    max_run_seconds: int
    source: LocalSource | None = None
    image: str = ""
    entrypoint: tuple[str, ...] | None = None
    arguments: tuple[str, ...] | None = None
    isolated: bool = False
    max_restarts: int = 0

    @property
    def replaces_hosts(self) -> bool:
        """Return whether a host that was killed is started again.

        It is not if the job has no restarts, or reads a channel in Pipe mode, which cannot be read
        again from its start.
        """
        return self.max_restarts > 0 and not any(channel.is_pipe for channel in self.channels)

    @property
    def in_containers(self) -> bool:
        """Return whether the emulated hosts are containers, not processes."""
        return self.instance_type in LOCAL

    @property
    def has_world(self) -> bool:
        """Return whether the launcher starts ranks that form one world over all hosts."""
        return KEY in self.hyperparameters or requests_ranks(self.hyperparameters)

    @property
    def elastic_min(self) -> int | None:
        """Return the option elastic_min of the job; None if the loss of a host ends the job."""
        document = self.hyperparameters.get(KEY)
        return parse_engine(document).elastic_min if document is not None else None

    @property
    def framework(self) -> str | None:
        """Return "torch" or "tensorflow", the framework of the ranks; None if the image decides."""
        document = self.hyperparameters.get(KEY)
        if document is not None:
            return parse_framework(document)
        return flagged_framework(self.hyperparameters)

    @property
    def arn(self) -> str:
        """Return an invented ARN of the job, for scripts that read one."""
        return f"arn:aws:sagemaker:{REGION}:000000000000:training-job/{self.name}"

    @property
    def layout(self) -> str:
        """Return the size of the job as text, such as "2 hosts x 4 ranks"."""
        ranks = self.processes_per_host
        words = [_count(len(self.hosts), "host"), *([_count(ranks, "rank")] if ranks else [])]
        return " x ".join(words)

    def resource_config(self, host: LocalHost) -> dict[str, Any]:
        """Return the content of resourceconfig.json for one host, with all fields of SageMaker."""
        addresses = [each.address for each in self.hosts]
        group = {
            "instance_group_name": _GROUP,
            "instance_type": self.instance_type,
            "hosts": addresses,
        }
        return {
            "current_host": host.address,
            "current_instance_type": self.instance_type,
            "current_group_name": _GROUP,
            "hosts": addresses,
            "instance_groups": [group],
            "network_interface_name": "eth0" if self.in_containers else "lo",
        }

    def submitted(self) -> LocalSource | None:
        """Return the code that the hyperparameter sagemaker_submit_directory names.

        Returns None if the hyperparameter is missing or names a place in S3.
        """
        place = json.loads(self.hyperparameters.get(SUBMIT_DIRECTORY, '""'))
        return LocalSource(folder=Path(place)) if place.startswith("/") else None

    def input_data_config(self) -> dict[str, dict[str, str]]:
        """Return the content of inputdataconfig.json, the same for every host."""
        return {channel.name: channel.config for channel in self.channels}

    def dump(self) -> dict[str, Any]:
        """Return the plan as values that JSON can represent."""
        return {**asdict(self), "source": self.source and self.source.request()}

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> LocalJob:
        """Create a LocalJob from values that `dump` returned."""
        parts = dict(document)
        parts["hosts"] = tuple(LocalHost(**host) for host in parts["hosts"])
        parts["channels"] = tuple(LocalChannel(**channel) for channel in parts["channels"])
        for name in ("entrypoint", "arguments"):
            parts[name] = _words(parts.get(name))
        return cls(**{**parts, "source": LocalSource.parse(parts.get("source"))})


def plan_local_job(request: Mapping[str, Any]) -> LocalJob:
    """Return the plan of a local job for its CreateTrainingJob request.

    In `request`, the URIs of output and checkpoints must be file:// URIs.

    Raises:
        OptionError: The options of the distribution are for another number of hosts, or a
            local job cannot read a channel.
    """
    hyperparameters = dict(request.get("HyperParameters", {}))
    resources, algorithm = request["ResourceConfig"], request["AlgorithmSpecification"]
    output = request["OutputDataConfig"]
    checkpoint = request.get("CheckpointConfig", {})
    wire = hyperparameters.get(KEY)
    ranks = flagged_ranks(hyperparameters)
    options = parse_engine(wire) if wire else DataParallel(processes_per_host=ranks)
    raise_all(host_faults(options, resources["InstanceCount"]))
    return LocalJob(
        name=request["TrainingJobName"],
        instance_type=resources["InstanceType"],
        hosts=tuple(_hosts(resources["InstanceCount"], resources["InstanceType"] in LOCAL)),
        processes_per_host=options.processes_per_host,
        hyperparameters=_plain_source(hyperparameters),
        environment=dict(request.get("Environment", {})),
        channels=plan_channels(request),
        output=directory_of(output["S3OutputPath"]) or None,
        checkpoints=directory_of(checkpoint["S3Uri"]) if checkpoint else None,
        checkpoint_folder=_below_root(checkpoint.get("LocalPath", "/opt/ml/checkpoints")),
        compress=output.get("CompressionType", "GZIP") == "GZIP",
        max_run_seconds=request["StoppingCondition"]["MaxRuntimeInSeconds"],
        source=LocalSource.parse(request.get("LocalSource")),
        image=algorithm.get("TrainingImage", ""),
        entrypoint=_words(algorithm.get("ContainerEntrypoint")),
        arguments=_words(algorithm.get("ContainerArguments")),
        isolated=request.get("EnableNetworkIsolation", False),
        max_restarts=with_variables(options, request.get("Environment", {})).max_restarts,
    )


def divide_gpus(gpus: Sequence[str], num_hosts: int) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of each emulated host, in the order of the hosts.

    All hosts get the same number of neighbouring GPUs, because all hosts of a job run the same
    number of ranks; the remaining GPUs are not used. For 8 GPUs and 3 hosts: (0 1) (2 3) (4 5).

    Args:
        gpus: Ids of this machine's GPUs.
        num_hosts: Number of emulated hosts.

    Raises:
        OptionError: There are fewer GPUs than hosts.
    """
    share = len(gpus) // num_hosts
    if not share:
        raise OptionError(
            f"instance_count is {num_hosts} with instance_type='local_gpu'",
            f"this machine has {len(gpus)} GPUs, and every host needs at least one",
            "Pass a smaller instance_count, or instance_type='local'",
            about="instance_count",
            kind="missing_gpu",
        )
    return tuple(tuple(gpus[i * share : (i + 1) * share]) for i in range(num_hosts))


def _hosts(count: int, in_containers: bool) -> list[LocalHost]:
    labels = [f"algo-{i + 1}" for i in range(count)]
    if in_containers:
        return [LocalHost(label=label, address=label) for label in labels]
    first = IPv4Address("127.0.0.1")
    return [LocalHost(label=labels[i], address=str(first + i)) for i in range(count)]


def _words(given: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)


def _plain_source(hyperparameters: dict[str, str]) -> dict[str, str]:
    source = json.loads(hyperparameters.get(SUBMIT_DIRECTORY, '""'))
    if source:
        hyperparameters[SUBMIT_DIRECTORY] = json.dumps(source.removeprefix(FILE))
    return hyperparameters


def _below_root(path: str) -> str:
    return str(PurePosixPath(path).relative_to("/opt/ml"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
