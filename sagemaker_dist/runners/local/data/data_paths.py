# SPDX-License-Identifier: Apache-2.0
"""Paths of copied data in the folder of a job.

data/training/...           data that all hosts share, and source of pipes
data/training/algo-1/...    part of one host, with ShardedByS3Key
"""

from __future__ import annotations

from pathlib import Path

from sagemaker_dist.planning import LocalChannel, LocalHost
from sagemaker_dist.runners.local.job_folder import JobFolder


def data_directory(folder: JobFolder) -> Path:
    """Return the directory of all copied data."""
    return folder.path / "data"


def channel_directory(folder: JobFolder, channel: LocalChannel, host: LocalHost) -> Path:
    """Return the directory of a channel for one host."""
    shared = data_directory(folder) / channel.name
    return shared / host.label if channel.is_split else shared
