# SPDX-License-Identifier: Apache-2.0
"""Check that the compiled adapter exists and was built for this release of torch.

c10d, the C++ library of torch.distributed, has no stable ABI: an adapter that was built for
another minor release of torch would crash. The versions are therefore compared before the
adapter is loaded.
"""

from __future__ import annotations

from importlib.resources import files

import torch

from sagemaker_dist.errors import SetupError, SkewError

_REBUILD = (
    "Install the torch that you want, then run pip install --no-build-isolation"
    " --force-reinstall --no-deps sagemaker-dist-runtime"
)


def check_adapter() -> None:
    """Check that smdist's compiled extension was built for the installed minor release of torch.

    Raises:
        SetupError: smdist was built without torch.
        SkewError: smdist was built for another minor release of torch.
    """
    record = files(__package__) / "built_for_torch.txt"
    if not record.is_file():
        raise SetupError(
            "the runtime smdist has no torch adapter",
            "torch was not installed when sagemaker-dist-runtime was built",
            _REBUILD,
        )
    built = record.read_text().strip()
    if _minor(built) != _minor(torch.__version__):
        raise SkewError(
            f"smdist's torch adapter was built for torch {built}",
            f"torch {torch.__version__} is installed, and torch's C++ interface changes with"
            " every minor release",
            _REBUILD,
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
