# SPDX-License-Identifier: Apache-2.0
"""From a CreateTrainingJob request to the hosts that emulate it on one machine.

Each host of the job becomes a tree like /opt/ml, and one launcher in a process
(local_process) or in a container (local, local_gpu) of its own:

    hosts/algo-1  at 127.0.0.1      hosts/algo-2  at 127.0.0.2      ...
    hosts/algo-1  at algo-1         hosts/algo-2  at algo-2         ...
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
from sagemaker_dist.contract.flags import asks_for_ranks, flagged_framework
from sagemaker_dist.errors import raise_all
from sagemaker_dist.planning.local_channel import LocalChannel, plan_channels
from sagemaker_dist.planning.locations import FILE, directory_of

SUBMIT_DIRECTORY: Final = "sagemaker_submit_directory"  # SageMaker's names, as in its toolkit
PROGRAM: Final = "sagemaker_program"
REGION: Final = "us-east-1"  # a placeholder: scripts expect some region
CONTAINER_ROOT: Final = PurePosixPath("/opt/ml")
_GROUP: Final = "homogeneousCluster"  # what SageMaker calls the only group of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHost:
    """One emulated host.

    Attributes:
        label: What messages and directories call it: algo-1.
        address: The name by which others reach it: a loopback address, or its label.
    """

    label: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """The user's code where it lies on this machine.

    Attributes:
        folder: Where the entry point is.
        only: The one file that is meant; None means the whole folder.
        dependencies: Files and directories that lie beside the entry point in the job.
    """

    folder: Path
    only: str | None = None
    dependencies: tuple[Path, ...] = ()

    def request(self) -> dict[str, Any]:
        """As the request of a local job carries it; SageMaker's API has no such part."""
        dependencies = [str(each) for each in self.dependencies]
        return {"Folder": str(self.folder), "Only": self.only, "Dependencies": dependencies}

    @classmethod
    def parse(cls, part: Mapping[str, Any] | None) -> LocalSource | None:
        """What `request` wrote, or None where there was none."""
        if part is None:
            return None
        dependencies = tuple(Path(each) for each in part["Dependencies"])
        return cls(folder=Path(part["Folder"]), only=part["Only"], dependencies=dependencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """Everything the supervisor of a job needs to know.

    Attributes:
        instance_type: Also says of what kind the hosts are.
        image: What containers are made of; processes have none.
        entrypoint: Instead of the image's own, or None.
        arguments: Instead of "train", or None.
        isolated: Containers reach each other alone.
        processes_per_host: Ranks on each host, or None where the launcher decides.
        output: Directory that gets <name>/output/model.tar.gz, or None for the
            job's own directory.
        checkpoints: Directory that all hosts share, or None for the job's own.
        checkpoint_folder: Where a host finds it, below its root.
        compress: Whether the model becomes model.tar.gz or a directory.
        max_run_seconds: A job that takes longer is stopped.
        source: The user's code, or None where the hyperparameter
            sagemaker_submit_directory says where it lies.
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

    @property
    def in_containers(self) -> bool:
        """Whether its hosts are containers."""
        return self.instance_type in LOCAL

    @property
    def has_world(self) -> bool:
        """Whether its ranks were asked for as one world, so that the launcher knows all hosts."""
        return KEY in self.hyperparameters or asks_for_ranks(self.hyperparameters)

    @property
    def framework(self) -> str | None:
        """What its ranks train with; None where the launcher asks what its image holds."""
        document = self.hyperparameters.get(KEY)
        if document is not None:
            return parse_framework(document)
        return flagged_framework(self.hyperparameters)

    @property
    def arn(self) -> str:
        """A name in the form of AWS, for scripts that want one."""
        return f"arn:aws:sagemaker:{REGION}:000000000000:training-job/{self.name}"

    @property
    def layout(self) -> str:
        """The size of the job in words: 2 hosts x 4 ranks."""
        ranks = self.processes_per_host
        words = [_count(len(self.hosts), "host"), *([_count(ranks, "rank")] if ranks else [])]
        return " x ".join(words)

    def resource_config(self, host: LocalHost) -> dict[str, Any]:
        """The resourceconfig.json of one host, in SageMaker's full form."""
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
        """The directory that sagemaker_submit_directory names on this machine, if it does."""
        place = json.loads(self.hyperparameters.get(SUBMIT_DIRECTORY, '""'))
        return LocalSource(folder=Path(place)) if place.startswith("/") else None

    def input_data_config(self) -> dict[str, dict[str, str]]:
        """The inputdataconfig.json of every host."""
        return {channel.name: channel.config for channel in self.channels}

    def dump(self) -> dict[str, Any]:
        """As JSON carries it."""
        return {**asdict(self), "source": self.source and self.source.request()}

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> LocalJob:
        """What `dump` wrote."""
        parts = dict(document)
        parts["hosts"] = tuple(LocalHost(**host) for host in parts["hosts"])
        parts["channels"] = tuple(LocalChannel(**channel) for channel in parts["channels"])
        for name in ("entrypoint", "arguments"):
            parts[name] = _words(parts.get(name))
        return cls(**{**parts, "source": LocalSource.parse(parts.get("source"))})


def plan_local_job(request: Mapping[str, Any]) -> LocalJob:
    """Read a CreateTrainingJob request whose output is file://.

    Raises:
        OptionError: The options of the distribution are for another number of hosts,
            or a channel is of a kind that no job of this machine reads.
    """
    hyperparameters = dict(request.get("HyperParameters", {}))
    resources, algorithm = request["ResourceConfig"], request["AlgorithmSpecification"]
    output = request["OutputDataConfig"]
    checkpoint = request.get("CheckpointConfig", {})
    wire = hyperparameters.get(KEY)
    ranks = None if asks_for_ranks(hyperparameters) else 1
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
    )


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
