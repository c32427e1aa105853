# SPDX-License-Identifier: Apache-2.0
"""Checks of a SageMaker job's input channels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from sagemaker_dist.errors import OptionError, within
from sagemaker_dist.planning.channel_checks import Channel
from sagemaker_dist.planning.locations import S3
from sagemaker_dist.planning.service.groups import channel_group_faults
from sagemaker_dist.planning.service.limits import short_repr, text_faults
from sagemaker_dist.planning.service.s3_places import bucket_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.planning.service.volumes import volume_faults
from sagemaker_dist.planning.service.vpc_config import vpc_faults

_VALUES: Final = (  # the SDK's argument, the field of Channel, the shape of the service model
    ("input_mode", "mode", "TrainingInputMode"),
    ("distribution", "distribution", "S3DataDistribution"),
    ("s3_data_type", "data_type", "S3DataType"),
    ("compression", "compression", "CompressionType"),
    ("record_wrapping", "record_wrapper", "RecordWrapper"),
)


def input_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """Yield the faults of channels that SageMaker would refuse, or not deliver as requested."""
    ships_code = bool(terms.enable_network_isolation and terms.runs_script)
    most, num = terms.limit("InputDataConfig").most, len(channels) + ships_code
    if channels and most is not None and num > most:
        yield OptionError(
            f"the job has {num} channels{', including one for its code' if ships_code else ''}",
            f"SageMaker allows at most {most}",
            "Put the data of several channels under one prefix",
            about="inputs",
            kind="too_many",
        )
    yield from _reserved_faults(terms, channels, ships_code)
    for channel in channels:
        for name, attribute, shape in _VALUES:
            yield from text_faults(
                ("inputs", channel.name, name),
                getattr(channel, attribute),
                terms.limit(shape),
                hint="",
                label=f"{name} of channel {channel.name!r}",
            )
        yield from within(_mode_faults(channel), "inputs", channel.name)
        if channel.file_system is not None:
            faults = volume_faults(terms, channel, channel.file_system)
            yield from within(faults, "inputs", channel.name)
        elif isinstance(channel.uri, str) and channel.uri.startswith(S3):
            what = f"channel {channel.name!r} is {short_repr(channel.uri)}"
            faults = bucket_faults(terms, what, channel.uri)
            yield from within(faults, "inputs", channel.name, "uri")
    yield from channel_group_faults(terms, channels)
    yield from vpc_faults(terms, channels)


def _reserved_faults(
    terms: Terms, channels: Sequence[Channel], ships_code: bool
) -> Iterator[OptionError]:
    taken = {"sm_drivers": "SageMaker's SDK 3 and its images use this channel for a launcher"}
    if ships_code:
        taken["code"] = "with enable_network_isolation, the code is sent in this channel"
    if terms.training_recipe is not None:
        taken["recipe"] = "the training_recipe is sent in this channel"
    for name, times in Counter(channel.name for channel in channels).items():
        what = f"a channel is named {name!r}"
        if name in taken:
            yield OptionError(
                what, taken[name], "Rename the channel", about=("inputs", name), kind="reserved"
            )
        if times > 1:
            yield OptionError(
                what,
                "another channel has the same name",
                "Rename the channel, or pass another model_channel_name",
                about=("inputs", name),
                kind="repeated",
            )


def _mode_faults(channel: Channel) -> Iterator[OptionError]:
    mode, of = channel.mode, f"of channel {channel.name!r}"
    if mode == "FastFile" and channel.data_type not in (None, "S3Prefix"):
        yield OptionError(  # Access Training Data in the developer guide, 2026-11-21
            f"s3_data_type {of} is {channel.data_type!r}",
            "FastFile mode reads all objects below a prefix, but no manifests",
            "Pass s3_data_type='S3Prefix', or input_mode='File'",
            about="s3_data_type",
            kind="conflict",
        )
    if mode not in ("File", "FastFile"):
        return
    if channel.compression == "Gzip":
        yield OptionError(
            f"compression {of} is 'Gzip'",
            "data is decompressed only in Pipe mode",
            "Leave compression out and decompress in the script, or pass input_mode='Pipe'",
            about="compression",
            kind="conflict",
        )
    if channel.record_wrapper == "RecordIO":
        yield OptionError(
            f"record_wrapping {of} is 'RecordIO'",
            "records are wrapped only in Pipe mode",
            "Leave record_wrapping out, or pass input_mode='Pipe'",
            about="record_wrapping",
            kind="conflict",
        )
