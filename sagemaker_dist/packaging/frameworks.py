# SPDX-License-Identifier: Apache-2.0
"""Frameworks that have a sagemaker-dist image, and the names of these images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from sagemaker_dist.errors import OptionError, closest, raise_all

REPOSITORY: Final = "sagemaker-dist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Versions of one framework that an image can have.

    Attributes:
        default: Version that an image has by default.
        series: Beginnings of the allowed versions, such as "2.13.": the minor versions that the
            runtime is compiled for.
    """

    default: str
    series: tuple[str, ...]


FRAMEWORKS: Final = {
    "torch": Framework(default="2.13.0", series=("2.13.",)),
    "tensorflow": Framework(
        default="2.21.0", series=tuple(f"2.{minor}." for minor in range(16, 22))
    ),
}


def installed_version() -> str:
    """Return the version of sagemaker-dist that is installed here, such as "0.1.0"."""
    return version("sagemaker-dist")


def default_tag(framework: str) -> str:
    """Return the name of this version's image of a framework: "sagemaker-dist:0.1.0-torch".

    Raises:
        OptionError: There is no image for this framework.
    """
    raise_all(framework_faults(framework))
    return f"{REPOSITORY}:{installed_version()}-{framework}"


def is_sagemaker_dist_image(image: object) -> bool:
    """Return whether an image is named "sagemaker-dist", in any registry and with any tag."""
    if not isinstance(image, str):  # None, or a pipeline variable
        return False
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[0] == REPOSITORY


def framework_faults(framework: str, framework_version: str | None = None) -> Iterator[OptionError]:
    """Yield an error for each fault in a framework's name and version; none if both are right.

    A version of None stands for the default version.
    """
    if framework not in FRAMEWORKS:
        hint = closest(str(framework), FRAMEWORKS)
        what = f"framework is {framework!r}"
        yield OptionError(
            what, "sagemaker-dist has no image for this framework", hint, "framework", "unknown"
        )
        return
    if framework_version is None:
        return
    known = FRAMEWORKS[framework]
    what = f"framework_version is {framework_version!r}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", framework_version):
        yield OptionError(
            what,
            "an image needs an exact version",
            f"Pass all three numbers: {known.default}",
            "framework_version",
        )
    elif not framework_version.startswith(known.series):
        yield OptionError(
            what,
            f"the runtime is compiled for {framework}"
            f" {' to '.join(f'{each}x' for each in _ends(known.series))}",
            f"Pass {known.default}",
            "framework_version",
        )


def _ends(series: tuple[str, ...]) -> tuple[str, ...]:
    return series if len(series) == 1 else (series[0], series[-1])
