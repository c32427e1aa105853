# SPDX-License-Identifier: Apache-2.0
"""Typed input data of a job, and its conversion to CreateTrainingJob's InputDataConfig."""

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
    """Input data in S3 or, for a local job only, at a file:// URI.

    Attributes:
        uri: URI of a prefix, or of a manifest if `s3_data_type` is a type of manifest.
        distribution: "FullyReplicated" (every host gets all objects) or "ShardedByS3Key" (each
            host gets a part of the objects). Default "FullyReplicated".
        input_mode: "File", "FastFile" or "Pipe". Default None: the mode of the job.
        s3_data_type: "S3Prefix", "ManifestFile" or "AugmentedManifestFile". Default "S3Prefix".
        content_type: MIME type of the data; the job can read it in inputdataconfig.json. Default
            None: no type.
        compression: "Gzip" if Pipe mode must decompress the data. Default None.
        record_wrapping: "RecordIO" if Pipe mode must wrap each object as a record. Default None.
        attribute_names: Attributes to read from an augmented manifest. Default None.
        shuffle_seed: Seed by which Pipe mode shuffles the objects, in a new order in each epoch.
            Default None: no shuffling.
        instance_groups: Names of the instance groups that get the data. Default None: all.
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
        """Return the element of CreateTrainingJob's InputDataConfig, without ChannelName."""
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
    """Input data in a directory of Amazon FSx for Lustre or EFS.

    On SageMaker, the job needs subnets and security groups, too.

    Attributes:
        uri: URI such as "fsx://fs-0123456789abcdef0/mount/data" or "efs://fs-…/data".
        writable: True if the job may write to the directory. Default False.
        content_type: MIME type of the data; the job can read it in inputdataconfig.json. Default
            None: no type.
    """

    uri: str
    writable: bool = False
    content_type: str | None = None

    def part(self) -> dict[str, Any]:
        """Return the element of CreateTrainingJob's InputDataConfig, without ChannelName."""
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
    """Return CreateTrainingJob's InputDataConfig for the value of `inputs=`.

    A value of an unknown type becomes a channel that the checks refuse.
    """
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
