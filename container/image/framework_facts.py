# SPDX-License-Identifier: Apache-2.0
"""Write a JSON file with facts about the framework that is installed in an image.

    python3 framework_facts.py torch /opt/sagemaker_dist/image.json

The names are those of the image's labels without "sagemaker-dist.", all values are texts. The GPUs
that there is code for are read from the framework itself, since they differ between builds of one
version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

PLUGIN = Path("/opt/sagemaker_dist/nccl/libnccl-net.so")


def torch_code() -> tuple[str, list[str]]:
    """Return the version of CUDA that torch was built with, or "", and its GPU code."""
    import torch

    return torch.version.cuda or "", torch.cuda.get_arch_list()


def tensorflow_code() -> tuple[str, list[str]]:
    """Return the version of CUDA that TensorFlow was built with, or "", and its GPU code."""
    import tensorflow

    build = tensorflow.sysconfig.get_build_info()
    code = build.get("cuda_compute_capabilities", []) if build.get("is_cuda_build") else []
    return str(build.get("cuda_version", "")) if code else "", list(code)


def nvidia_packages() -> Iterator[Distribution]:
    """Yield the Python packages of NVIDIA, with CUDA, its libraries and NCCL, by name."""
    found = {name_of(each): each for each in distributions()}
    yield from (found[name] for name in sorted(found) if name.startswith(("nvidia-", "cuda-")))


def name_of(package: Distribution) -> str:
    """Return the name of a package in the form that package indexes use."""
    return str(package.metadata["Name"]).lower().replace("_", "-")


def licence(package: Distribution) -> str:
    """Return the licence that a package states, or "no licence stated"."""
    stated = package.metadata.get("License-Expression") or package.metadata.get("License")
    return (stated or "no licence stated").splitlines()[0].replace(";", ",")


def size_bytes(package: Distribution) -> int:
    """Return the size of a package's installed files."""
    paths = (Path(package.locate_file(file)) for file in package.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def facts(framework: str) -> dict[str, str]:
    """Return the facts about the installed framework, "torch" or "tensorflow"."""
    version, code = torch_code() if framework == "torch" else tensorflow_code()
    packages = list(nvidia_packages())
    nccl = [each.version for each in packages if name_of(each).startswith("nvidia-nccl")]
    named = (f"{name_of(each)} {each.version} ({licence(each)})" for each in packages)
    return {
        "accelerator": "cuda" if version else "cpu",
        "cuda-version": version,
        "gpu-code": " ".join(code),
        "nccl-version": "".join(nccl[:1]),
        "nccl-plugin": str(PLUGIN.resolve()) if PLUGIN.exists() else "",
        "nvidia-packages": "; ".join(named),
        "nvidia-bytes": str(sum(map(size_bytes, packages))),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(facts(sys.argv[1]), indent=1))
