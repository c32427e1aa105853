# SPDX-License-Identifier: Apache-2.0
"""Input channels of a local job, from its CreateTrainingJob request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.errors import raise_all
from sagemaker_dist.planning.channel_checks import Channel, channel_faults, parse_channel

FILE_SYSTEMS: Final = (
    "LocalFileSystems"  # field of a local job's request; SageMaker has no such one
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChannel:
    """Input channel of a local job, the same for all its hosts.

    Attributes:
        name: Name of the channel.
        path: Directory or file with the data on this machine; "" if the data is in S3.
        config: Entry of the channel in inputdataconfig.json.
        uri: URI that the user passed.
        gunzip: True if a pipe must decompress its data.
        seed: Seed by which a pipe shuffles its objects, in a new order in each epoch; None for no
            shuffling.
        writable: True if the job may change the data.
    """

    name: str
    path: str
    config: dict[str, str]
    uri: str = ""
    gunzip: bool = False
    seed: int | None = None
    writable: bool = False

    @property
    def is_pipe(self) -> bool:
        """Return whether the script reads the data from a FIFO, not from a directory."""
        return self.config["TrainingInputMode"] == "Pipe"

    @property
    def is_sharded(self) -> bool:
        """Return whether each host gets only a part of the objects."""
        return self.config["S3DistributionType"] == "ShardedByS3Key"

    @property
    def is_split(self) -> bool:
        """Return whether each host needs a directory of its own with its part of the objects.

        The result is False for a pipe, which reads only the objects of its own host.
        """
        return self.is_sharded and not self.is_pipe

    @property
    def is_fetched(self) -> bool:
        """Return whether the data is copied into the job's folder before the script reads it."""
        return not self.path or self.is_split


def plan_channels(request: Mapping[str, Any]) -> tuple[LocalChannel, ...]:
    """Return the channels of a CreateTrainingJob request.

    Raises:
        OptionError: A local job cannot read a channel.
    """
    mode = request["AlgorithmSpecification"]["TrainingInputMode"]
    systems = request.get(FILE_SYSTEMS) or {}
    parts = request.get("InputDataConfig", [])
    channels = [
        parse_channel(part["ChannelName"], part, mode=mode, file_systems=systems) for part in parts
    ]
    here = request["ResourceConfig"]["InstanceType"]
    raise_all(channel_faults(channels, on_this_machine=True, instance_type=here))
    return tuple(map(_local_channel, channels, parts))


def _local_channel(channel: Channel, part: Mapping[str, Any]) -> LocalChannel:
    config = {
        "TrainingInputMode": channel.mode,
        "S3DistributionType": channel.distribution or "FullyReplicated",
        "RecordWrapperType": channel.record_wrapper or "None",
    }
    if "ContentType" in part:
        config["ContentType"] = part["ContentType"]
    system = part["DataSource"].get("FileSystemDataSource", {})
    return LocalChannel(
        name=channel.name,
        path=channel.directory or "",
        config=config,
        uri=channel.uri or f"{system['FileSystemType']}:{system['FileSystemId']}",
        gunzip=channel.compression == "Gzip",
        seed=part.get("ShuffleConfig", {}).get("Seed"),
        writable=system.get("FileSystemAccessMode") == "rw",
    )
