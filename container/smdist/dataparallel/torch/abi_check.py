# SPDX-License-Identifier: Apache-2.0
"""Check that the compiled adapter exists and was built for this release of torch.

c10d has no stable ABI: an adapter built for another minor release of torch
would crash instead of failing, so versions are compared before it is loaded.
"""

from __future__ import annotations

from importlib.resources import files

import torch

from sagemaker_dist.errors import SetupError, SkewError

_REBUILD = (
    "Run pip install --no-build-isolation --force-reinstall --no-deps sagemaker-dist-runtime"
    " beside the torch you want"
)


def check_adapter() -> None:
    """Compare the running torch with the torch that the adapter was built for.

    Raises:
        SetupError: The runtime was built without torch.
        SkewError: The runtime was built for another minor release of torch.
    """
    record = files(__package__) / "built_for_torch.txt"
    if not record.is_file():
        raise SetupError(
            "smdist has no torch adapter",
            "torch was not installed when sagemaker-dist-runtime was built",
            _REBUILD,
        )
    built = record.read_text().strip()
    if _minor(built) != _minor(torch.__version__):
        raise SkewError(
            f"smdist's adapter is for torch {built}",
            f"this is torch {torch.__version__}, and c10d changes with every minor release",
            _REBUILD,
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
