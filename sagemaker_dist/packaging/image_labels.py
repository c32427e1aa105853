# SPDX-License-Identifier: Apache-2.0
"""`ImageLabels`: facts about a training image that its build recorded as labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

LABEL: Final = "sagemaker-dist."
_LAST_STEP: Final = f"LABEL {LABEL}version="  # at the end of container/Dockerfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLabels:
    """Facts about an image that its build recorded.

    Attributes:
        labels: All labels. Labels of sagemaker-dist begin with "sagemaker-dist.".
        is_derived: True if the image was built on an image of sagemaker-dist. It has the labels of
            that image, and may hold another framework.
    """

    labels: Mapping[str, str]
    is_derived: bool = False

    @property
    def version(self) -> str | None:
        """Version of the sagemaker-dist runtime in the image; None if the image has no runtime."""
        return self.labels.get(f"{LABEL}version")

    @property
    def wire(self) -> str | None:
        """Version of the hyperparameter format that the runtime reads; None without the runtime."""
        return self.labels.get(f"{LABEL}wire")

    @property
    def framework(self) -> str | None:
        """Framework in the image, such as "torch"; None without the runtime."""
        return self.labels.get(f"{LABEL}framework")

    @property
    def framework_version(self) -> str | None:
        """Version of the framework in the image, such as "2.13.0".

        The result is None if the image does not have the sagemaker-dist runtime.
        """
        return self.labels.get(f"{LABEL}framework-version")

    @property
    def accelerator(self) -> str | None:
        """Build of the framework in the image, "cpu" or "cuda"; None if it was not recorded."""
        return self.labels.get(f"{LABEL}accelerator")

    @property
    def cuda_version(self) -> str | None:
        """Version of CUDA that the framework was built with, such as "13.0"; None without CUDA."""
        return self.labels.get(f"{LABEL}cuda-version") or None

    @property
    def gpu_code(self) -> tuple[str, ...] | None:
        """Targets that the framework was compiled for, such as "sm_80" and "compute_120".

        The tuple is empty for a CPU build. The result is None if the targets were not recorded.
        """
        recorded = self.labels.get(f"{LABEL}gpu-code")
        return None if recorded is None else tuple(recorded.split())

    @property
    def nccl_version(self) -> str | None:
        """Version of the package of NCCL in the image, such as "2.29.7"; None without it."""
        return self.labels.get(f"{LABEL}nccl-version") or None

    @property
    def nccl_plugin(self) -> str | None:
        """Path of NCCL's network plugin in the image, such as aws-ofi-nccl; None without one."""
        return self.labels.get(f"{LABEL}nccl-plugin") or None

    @property
    def nvidia_packages(self) -> tuple[str, ...]:
        """Python packages of NVIDIA in the image: "name version (licence)" of each."""
        return tuple(filter(None, self.labels.get(f"{LABEL}nvidia-packages", "").split("; ")))

    @property
    def nvidia_bytes(self) -> int:
        """Unpacked size of `nvidia_packages`."""
        return int(self.labels.get(f"{LABEL}nvidia-bytes", "0"))


def is_derived(steps: Iterable[tuple[str, bool]]) -> bool:
    """Return whether steps followed those of container/Dockerfile and changed files.

    `steps` is the history of an image, oldest first: the text of each step, and whether it made a
    layer of files. The result is also True if the history lacks the Dockerfile's step with labels.
    """
    is_changed = True
    for text, has_files in steps:
        if _LAST_STEP in text:
            is_changed = False
        is_changed = is_changed or has_files
    return is_changed
