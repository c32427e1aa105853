# SPDX-License-Identifier: Apache-2.0
"""What the engine's refusals mean, and their mends."""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.errors import SetupError

BUILD: Final = "Build the image: sagemaker-dist image build"
_CAUSES: Final = (  # what the engine says, what it means, the mend
    (
        r"no space left on device|disk quota exceeded",
        "the disk that holds its images and containers, {data_root}, is full",
        "Make room: docker system df, docker system prune",
    ),
    (
        r"no such image|not found: manifest|manifest unknown",
        "this machine has no such image, and none is fetched unasked",
        f"{BUILD}, or fetch it: docker pull {{image}}",
    ),
    (
        r"exec: \\?\"train\\?\"|exec: .*train.*(not found|no such file)",
        "image {image} has no program `train`, so it is no training image",
        f"{BUILD}, or install the runtime in yours",
    ),
    (
        r"executable file not found|no such file or directory: unknown",
        "image {image} lacks the program that it is to start: {said}",
        "Correct container_entry_point, or the image",
    ),
    (
        r"exec format error|does not match the specified platform",
        "image {image} is built for another processor",
        "Build it on this machine, or for it: sagemaker-dist image build --platform",
    ),
    (
        r"could not select device driver|nvidia",
        "the engine cannot give GPUs to containers: {said}",
        "Install NVIDIA's container toolkit, or pass instance_type='local'",
    ),
    (
        r"address already in use|port is already allocated",
        "a network port is taken: {said}",
        "Stop what holds it",
    ),
    (
        r"non-overlapping IPv4 address pool|predefined address pools",
        "the engine has no network addresses left",
        "Remove networks that nobody uses: docker network prune",
    ),
    (
        r"mounts denied|not shared from the host|bind source path does not exist",
        "the engine cannot see a folder of this machine: {said}",
        "Share it with Docker (Docker Desktop: Settings, Resources, File sharing)",
    ),
    (
        r"name .* (is already in use|already exists)",
        "the engine has something of that name, of another user's job or left from before: {said}",
        "Pass another job_name, or remove it if it is nobody's",
    ),
)


def refusal(what: str, error: Exception, *, image: str = "", data_root: str = "") -> SetupError:
    """The error to raise where the engine refused to do something.

    Args:
        what: What could not be done.
    """
    said = " ".join(str(getattr(error, "explanation", None) or error).split())
    for pattern, why, mend in _CAUSES:
        if re.search(pattern, said, re.IGNORECASE):
            parts = {"image": image, "data_root": data_root, "said": said}
            return SetupError(what, why.format(**parts), mend.format(**parts))
    return SetupError(what, said, "Read the engine's log (journalctl -u docker)")
