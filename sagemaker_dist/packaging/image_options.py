# SPDX-License-Identifier: Apache-2.0
"""`ImageOptions`: options of the build of a training image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import OptionError, closest, raise_all
from sagemaker_dist.packaging.frameworks import FRAMEWORKS, default_tag, framework_faults
from sagemaker_dist.packaging.nccl_plugin import plugin_faults

BASE_IMAGE: Final = "python:3.11-slim-bookworm"
ACCELERATORS: Final = ("cpu", "cuda")
COMPATIBLE: Final = ("horovod",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options of the build of a training image.

    Attributes:
        framework: "torch" or "tensorflow".
        framework_version: Exact version, such as "2.13.0"; None for the version that this
            sagemaker-dist is tested with.
        accelerator: "cuda" for a CUDA build of the framework with NCCL, "cpu" for a CPU build. None
            for a CPU build if the package indexes have one, and else for the build that they have;
            for the framework of `base_image` if it holds one.
        nccl_plugin: Files of NCCL's network plugin aws-ofi-nccl and of the libraries that it needs:
            packages (.deb), tarballs, or the library libnccl-net*.so. With it, NCCL sends over EFA.
        compat: "horovod" for a package of this name on the engine of the runtime, and the program
            horovodrun, so that scripts for Horovod run unchanged; None for none.
        base_image: Image that the training image is based on, such as an AWS Deep Learning
            Container, a CUDA image or a slim Python. It needs bash, python3 and pip3; the framework
            is installed if it is missing.
        build_image: Image in which the runtime is compiled, with the same version of Python as
            `base_image`. None for `base_image` itself; a missing compiler is then installed for the
            compilation only.
        tag: Name of the image; None for `default_tag(framework)`.
        wheelhouse: Directory of wheels that are preferred to PyPI's.
        offline: Download nothing; `wheelhouse` must have all wheels.
        ca: File of certificates (PEM) that pip and apt trust in addition to their own, for a proxy
            that inspects TLS. The file is not part of the image.
        network: Network of the build steps, such as "host"; None for Docker's default.
        platform: Platform such as "linux/arm64"; None for the platform of this machine.
        index_url: Package index instead of PyPI.
        extra_index_url: Package index beside the first, for instance for CPU builds of torch.

    Raises:
        OptionError: A value is wrong; all faults are reported together.
    """

    framework: str = "torch"
    framework_version: str | None = None
    accelerator: str | None = None
    nccl_plugin: tuple[Path, ...] = ()
    compat: str | None = None
    base_image: str = BASE_IMAGE
    build_image: str | None = None
    tag: str | None = None
    wheelhouse: Path | None = None
    offline: bool = False
    ca: Path | None = None
    network: str | None = None
    platform: str | None = None
    index_url: str | None = None
    extra_index_url: str | None = None

    def __post_init__(self) -> None:
        raise_all(
            [
                *framework_faults(self.framework, self.framework_version),
                *self._accelerator_faults(),
                *self._compat_faults(),
                *plugin_faults(self.nccl_plugin),
                *self._file_faults(),
                *self._index_faults(),
                *self._empty_faults(),
            ]
        )

    @property
    def exact_version(self) -> str:
        """Version of the framework in the image."""
        return self.framework_version or FRAMEWORKS[self.framework].default

    @property
    def name(self) -> str:
        """Name of the image, with its tag."""
        return self.tag or default_tag(self.framework)

    def _accelerator_faults(self) -> Iterator[OptionError]:
        given = self.accelerator
        if given is not None and given not in ACCELERATORS:
            yield OptionError(
                f"accelerator is {given!r}",
                "there are images for two accelerators",
                closest(given, ACCELERATORS),
                about="accelerator",
                kind="unknown",
            )
        elif given == "cuda" and self.framework == "tensorflow":
            yield OptionError(
                "accelerator is 'cuda' and framework is 'tensorflow'",
                "the build installs a CUDA build of torch only",
                "Leave accelerator out, and pass a base_image with a CUDA build of TensorFlow",
                about="accelerator",
                kind="unsupported",
            )
        if self.nccl_plugin and given != "cuda":
            yield OptionError(
                f"nccl_plugin is {', '.join(str(file) for file in self.nccl_plugin)}",
                f"accelerator is {given!r}, and only a CUDA build has NCCL",
                "Pass accelerator='cuda', or leave nccl_plugin out",
                about="nccl_plugin",
                kind="no_effect",
            )

    def _compat_faults(self) -> Iterator[OptionError]:
        if self.compat is not None and self.compat not in COMPATIBLE:
            yield OptionError(
                f"compat is {self.compat!r}",
                "the build knows one package of another project's name",
                closest(self.compat, COMPATIBLE),
                about="compat",
                kind="unknown",
            )

    def _file_faults(self) -> Iterator[OptionError]:
        folder = self.wheelhouse
        if folder is None and self.offline:
            yield OptionError(
                "offline is True without a wheelhouse",
                "an offline build takes every wheel from the wheelhouse",
                "Fill a directory by `pip download` and pass it as wheelhouse",
                "offline",
            )
        if folder is not None and not any(Path(folder).glob("*.whl")):
            yield OptionError(
                f"wheelhouse is {str(folder)!r}",
                "the directory has no wheels"
                if Path(folder).is_dir()
                else "there is no such directory",
                "Fill a directory by `pip download` and pass it",
                "wheelhouse",
            )
        if self.ca is not None and not Path(self.ca).is_file():
            hint = "Pass a file of certificates in PEM format"
            yield OptionError(f"ca is {str(self.ca)!r}", "there is no such file", hint, "ca")

    def _index_faults(self) -> Iterator[OptionError]:
        for name in ("index_url", "extra_index_url"):
            if self.offline and getattr(self, name) is not None:
                yield OptionError(
                    f"{name} is {getattr(self, name)!r}",
                    "an offline build uses no index",
                    f"Leave out {name} or offline",
                    name,
                )

    def _empty_faults(self) -> Iterator[OptionError]:
        for name in ("base_image", "build_image", "tag", "network", "platform"):
            value = getattr(self, name)
            if value is not None and (not value or value.startswith("-") or " " in value):
                yield OptionError(
                    f"{name} is {value!r}",
                    "Docker allows no name that is empty, begins with - or has spaces",
                    "Correct the name",
                    name,
                )
