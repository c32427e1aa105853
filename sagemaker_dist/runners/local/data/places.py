# SPDX-License-Identifier: Apache-2.0
"""Where data that was brought lies in the folder of its job.

data/training/...           what all hosts share, and what pipes pick from
data/training/algo-1/...    the part of one host, with ShardedByS3Key
"""

from __future__ import annotations

from pathlib import Path

from sagemaker_dist.planning import LocalChannel, LocalHost
from sagemaker_dist.runners.local.folder import JobFolder


def data_directory(folder: JobFolder) -> Path:
    """All of it."""
    return folder.path / "data"


def channel_directory(folder: JobFolder, channel: LocalChannel, host: LocalHost) -> Path:
    """What one host finds of a channel."""
    shared = data_directory(folder) / channel.name
    return shared / host.label if channel.is_split else shared
