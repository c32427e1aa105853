# SPDX-License-Identifier: Apache-2.0
"""Builds the library of the test device into build/test_device, once for each state of its sources.

Ranks of one test may come here at the same time: one builds and the others wait.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
FOLDER = SOURCES.parents[2] / "build" / "test_device"
LIBRARY = FOLDER / "test_device.so"
_STAGING = SOURCES.parents[2] / "container/bindings/torch/staging"
INTERFACES = [_STAGING / "host_registration.h", _STAGING / "stream_memory.h"]
HOST_COLLECTIVES = FOLDER / "host_collectives.so"


def built_library() -> Path:
    """The library, built now if a source or torch has changed since it was."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / "built_from.txt"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = _state_of_sources()
        if not LIBRARY.exists() or not stamp.exists() or stamp.read_text() != state:
            _build()
            stamp.write_text(state)
    return LIBRARY


def _state_of_sources() -> str:
    digest = hashlib.sha256(f"{torch.__version__} {torch.__file__}".encode())
    own = [*SOURCES.glob("*.cc"), *SOURCES.glob("*.h"), SOURCES / "CMakeLists.txt"]
    for source in [*sorted(own), *INTERFACES]:
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()


def _build() -> None:
    cmake, ninja = _tool("cmake"), _tool("ninja")
    configure = [cmake, "-S", SOURCES, "-B", FOLDER, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure.append(f"-DTORCH_ROOT={Path(torch.__file__).parent}")
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    if ccache := shutil.which("ccache"):
        configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    for command in (configure, [cmake, "--build", FOLDER]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the test device was not built:\n{done.stdout}\n{done.stderr}")


def _tool(name: str) -> str:
    """The tool beside this interpreter, or else that of the machine."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is missing: install the dependency group `build`")
    return found
