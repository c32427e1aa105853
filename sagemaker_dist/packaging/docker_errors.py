# SPDX-License-Identifier: Apache-2.0
"""Conversion of the Docker engine's error messages to errors with a reason and a hint."""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.errors import SetupError

BUILD: Final = "Build the image: sagemaker-dist image build"
_CAUSES: Final = (  # pattern of the engine's message, kind, reason, hint
    (
        r"no space left on device|disk quota exceeded",
        "disk_full",
        "the disk with the engine's images and containers, {data_root}, is full",
        "Free space: docker system df, docker system prune",
    ),
    (
        r"no such image|not found: manifest|manifest unknown",
        "not_found",
        "this machine has no such image, and images are not pulled automatically",
        f"{BUILD}, or pull it: docker pull {{image}}",
    ),
    (
        r"exec: \\?\"train\\?\"|exec: .*train.*(not found|no such file)",
        "missing_train",
        "image {image} has no program `train`, so it is not a training image",
        f"{BUILD}, or install the sagemaker-dist runtime in your image",
    ),
    (
        r"executable file not found|no such file or directory: unknown",
        "missing_program",
        "image {image} does not have the program that the container starts: {message}",
        "Correct container_entry_point, or the image",
    ),
    (
        r"exec format error|does not match the specified platform",
        "wrong_processor",
        "image {image} is built for another processor",
        "Build it on this machine, or with --platform: sagemaker-dist image build --platform NAME",
    ),
    (
        r"could not select device driver|nvidia",
        "no_gpus",
        "the engine cannot give GPUs to containers: {message}",
        "Install NVIDIA's container toolkit, or pass instance_type='local'",
    ),
    (
        r"address already in use|port is already allocated",
        "port_in_use",
        "a network port is taken: {message}",
        "Stop the program that uses it",
    ),
    (
        r"non-overlapping IPv4 address pool|predefined address pools",
        "no_addresses",
        "the engine has no network addresses left",
        "Remove unused networks: docker network prune",
    ),
    (
        r"mounts denied|not shared from the host|bind source path does not exist",
        "unshared_directory",
        "the engine cannot read a directory of this machine: {message}",
        "Share the directory with Docker (Docker Desktop: Settings, Resources, File sharing)",
    ),
    (
        r"name .* (is already in use|already exists)",
        "name_in_use",
        "the engine has a container or network of this name already: {message}",
        "Pass another job_name, or remove the container or network if no job uses it",
    ),
)


def refusal(what: str, error: Exception, *, image: str = "", data_root: str = "") -> SetupError:
    """Return the error for an operation that the Docker engine refused.

    Args:
        what: Beginning of the error's text, which names the operation that failed.
        error: Exception of docker-py.
        image: Name of the image, for the error's text; "" if the operation uses no image.
        data_root: Directory of the engine's data, for the error about a full disk.
    """
    message = " ".join(str(getattr(error, "explanation", None) or error).split())
    for pattern, kind, why, hint in _CAUSES:
        if re.search(pattern, message, re.IGNORECASE):
            parts = {"image": image, "data_root": data_root, "message": message}
            return SetupError(what, why.format(**parts), hint.format(**parts), kind=kind)
    hint = "Read the engine's log (journalctl -u docker)"
    return SetupError(what, message, hint, kind="refused")
