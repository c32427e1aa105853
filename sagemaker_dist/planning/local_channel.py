# SPDX-License-Identifier: Apache-2.0
"""Input channels of a local job, read from its request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.errors import raise_all
from sagemaker_dist.planning.channel_checks import Channel, channel_faults, parse_channel

FILE_SYSTEMS: Final = "LocalFileSystems"  # a field that SageMaker's API lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChannel:
    """An input channel as the hosts of one job see it.

    Attributes:
        path: A directory or file of this machine, or "" where the data is in S3.
        config: Its entry in inputdataconfig.json.
        uri: URI that the user passed.
        gunzip: Whether the pipe unpacks its data.
        seed: Seed for the order of a pipe's objects, drawn anew for each epoch; None for no
            shuffling.
        writable: Whether hosts may change the data.
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
        """Return whether its data comes through a FIFO instead of a directory."""
        return self.config["TrainingInputMode"] == "Pipe"

    @property
    def is_sharded(self) -> bool:
        """Return whether each host gets its part of the objects."""
        return self.config["S3DistributionType"] == "ShardedByS3Key"

    @property
    def is_split(self) -> bool:
        """Return whether each host has a directory of its own; a pipe selects its host's part by
        itself.
        """
        return self.is_sharded and not self.is_pipe

    @property
    def is_fetched(self) -> bool:
        """Return whether its data is copied into the job's folder; other data is read in place."""
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
