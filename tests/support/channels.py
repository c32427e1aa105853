# SPDX-License-Identifier: Apache-2.0
"""S3 channels in requests, and the outcomes of jobs that have them."""

import time
from pathlib import Path

from sagemaker_dist.runners import TERMINAL


def channel(uri, name="a", mode="File", *, distribution="FullyReplicated", **more):
    """Return a member of InputDataConfig."""
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution}
    return {
        "ChannelName": name,
        "InputMode": mode,
        "DataSource": {"S3DataSource": source},
        **more,
    }


def run(runner, request):
    """Start a job and return its outcome."""
    name = runner.start(request)
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL)
    return runner.describe(name)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def log(runner):
    return Path(runner.logs_at("job"), "all.log").read_text()
