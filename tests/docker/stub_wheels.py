# SPDX-License-Identifier: Apache-2.0
"""Write stub wheels of a CUDA build of torch and of NCCL into a wheelhouse with the CPU build.

    python3 tests/docker/stub_wheels.py build/wheelhouse

The stub of torch has the two files in which the builds differ for an image: it is installed over
the files of the CPU build. So an image for CUDA is built in seconds, without gigabytes of CUDA.
"""

import sys
from pathlib import Path
from zipfile import ZipFile, ZipInfo

VERSION, NCCL = "2.13.0+cu130", "2.29.7"
CODE = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def write_wheel(folder: Path, name: str, version: str, tag: str, metadata: str, files: dict):
    """Write a wheel; `files` are texts by path, `metadata` are further lines of METADATA."""
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*texts, f"{info}/RECORD"))
    with ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, text in texts.items():
            wheel.writestr(ZipInfo(path), text)  # the same bytes at any time


def main(folder: Path) -> None:
    """Write both wheels; the CPU build of torch must be in the wheelhouse."""
    (cpu,) = folder.glob("torch-2.13.0+cpu-*.whl")
    with ZipFile(cpu) as wheel:
        cuda_module = wheel.read("torch/cuda/__init__.py").decode()
        version = wheel.read("torch/version.py").decode()
    files = {
        "torch/version.py": f"{version}\n__version__ = {VERSION!r}\ncuda = '13.0'\n",
        "torch/cuda/__init__.py": f"{cuda_module}\n\ndef get_arch_list():\n    return {CODE}\n",
    }
    tag = cpu.stem.split("-", 2)[2]
    needs = f"Requires-Dist: nvidia-nccl-cu13=={NCCL}\n"
    write_wheel(folder, "torch", VERSION, tag, needs, files)
    licence = "License-Expression: LicenseRef-NVIDIA-Proprietary\n"
    library = {"nvidia/nccl/lib/libnccl.so.2": "a stub"}
    write_wheel(folder, "nvidia_nccl_cu13", NCCL, "py3-none-any", licence, library)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
