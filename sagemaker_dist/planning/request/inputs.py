# SPDX-License-Identifier: Apache-2.0
"""Input data of a job, converted to CreateTrainingJob's InputDataConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.planning.channel_checks import parse_file_system
from sagemaker_dist.planning.locations import FILE

DEFAULT_CHANNEL: Final = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Input:
    """Data in S3, or at a file:// URI for a local job.

    Attributes:
        uri: Prefix, or manifest if `s3_data_type` is one.
        distribution: "FullyReplicated" or "ShardedByS3Key".
        input_mode: "File", "FastFile" or "Pipe". Default: the job's.
        s3_data_type: "S3Prefix", "ManifestFile" or "AugmentedManifestFile".
        shuffle_seed: Seed that shuffles the objects of a pipe, anew for each epoch.
        instance_groups: Names of the groups that get the data. Default: all.
    """

    uri: str
    distribution: str = "FullyReplicated"
    input_mode: str | None = None
    s3_data_type: str = "S3Prefix"
    content_type: str | None = None
    compression: str | None = None
    record_wrapping: str | None = None
    attribute_names: Sequence[str] | None = None
    shuffle_seed: int | None = None
    instance_groups: Sequence[str] | None = None

    def part(self) -> dict[str, Any]:
        """Return CreateTrainingJob's form, without the channel's name."""
        if self.uri.startswith(FILE):
            local = {"FileUri": self.uri, "FileDataDistributionType": self.distribution}
            place: dict[str, Any] = {"FileDataSource": local}
        else:
            source = {
                "S3DataType": self.s3_data_type,
                "S3Uri": self.uri,
                "S3DataDistributionType": self.distribution,
                "AttributeNames": _listed(self.attribute_names),
                "InstanceGroupNames": _listed(self.instance_groups),
            }
            place = {"S3DataSource": _given(source)}
        shuffle = None if self.shuffle_seed is None else {"Seed": self.shuffle_seed}
        return _given(
            {
                "DataSource": place,
                "ContentType": self.content_type,
                "CompressionType": self.compression,
                "RecordWrapperType": self.record_wrapping,
                "InputMode": self.input_mode,
                "ShuffleConfig": shuffle,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemInput:
    """Directory of Amazon FSx for Lustre or EFS; the job needs subnets and security groups.

    Attributes:
        uri: URI such as "fsx://fs-0123456789abcdef0/mount/data" or "efs://fs-…/data".
        writable: Whether the job may write there.
    """

    uri: str
    writable: bool = False
    content_type: str | None = None

    def part(self) -> dict[str, Any]:
        """Return CreateTrainingJob's form, without the channel's name."""
        place = parse_file_system(self.uri)
        source = {
            "FileSystemId": place.id if place else self.uri,
            "FileSystemType": place.kind if place else None,
            "DirectoryPath": place.directory if place else "/",
            "FileSystemAccessMode": "rw" if self.writable else "ro",
        }
        data = {"FileSystemDataSource": _given(source)}
        return _given({"DataSource": data, "ContentType": self.content_type})


def input_channels(inputs: Any) -> list[dict[str, Any]]:
    """Return the InputDataConfig of `inputs=`; values of unknown types are left to the checks."""
    if inputs is None:
        return []
    is_named = isinstance(inputs, Mapping) and "DataSource" not in inputs
    named = inputs if is_named else {DEFAULT_CHANNEL: inputs}
    return [{"ChannelName": str(name), **_part(value)} for name, value in named.items()]


def _part(value: Any) -> dict[str, Any]:
    if isinstance(value, (S3Input, FileSystemInput)):
        return value.part()
    if isinstance(value, Path):
        return S3Input(uri=value.absolute().as_uri()).part()
    if isinstance(value, str):
        kind = FileSystemInput if parse_file_system(value) else S3Input
        return kind(uri=value).part()
    if isinstance(value, Mapping):
        return dict(value)
    return {"DataSource": {type(value).__name__: {}}}


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return [names] if isinstance(names, str) else None if names is None else list(names)
