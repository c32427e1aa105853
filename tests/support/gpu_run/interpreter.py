# SPDX-License-Identifier: Apache-2.0
"""A Python with the machine's torch, in which the runtime is built against this torch.

The environment in build/gpu/venv has no packages of its own: it sees those of the interpreter that
runs this, also where that one is itself a virtual environment, and before them those that were
installed from a folder of wheels. The compiled binding needs no CUDA, whatever torch was built for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from sagemaker_dist.errors import SetupError

ROOT = Path(__file__).parents[3]
RELEASED_FOR = "2.13"
# Modules that tests import, by the names of their packages
_NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "psutil": "psutil",
    "pytest": "pytest",
    "pytest-timeout": "pytest_timeout",
}
_WHEELS_HINT = (
    "Install it, or name a folder with its wheel and the wheels that it needs by WHEELS=FOLDER"
)
_PATHS = "import json, sys; print(json.dumps(sys.path))"
_FIND = (
    "import importlib.util as found, json, sys;"
    "print(json.dumps([name for name in sys.argv[1:] if not found.find_spec(name)]))"
)
_TORCH = "import torch; print(torch.__version__); print(torch.__file__)"
# One rank, so that all that a rank imports is there
_JOIN = (
    "import smdist.dataparallel.torch, torch.distributed as dist;"
    "dist.init_process_group('smdist', store=dist.HashStore(), rank=0, world_size=1);"
    "dist.destroy_process_group()"
)
_LATE_HINT = "Try again when the machine is less busy: a build goes on with what it has compiled"
_CONFIGURING_SECONDS, _BUILDING_SECONDS = 120, 480


class Interpreter:
    """The environment of `make gpu`, below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site, self._packages = folder / "site", folder / "packages"
        self._build = folder / "runtime"
        self.python = folder / "venv" / "bin" / "python"

    def prepare(self, wheels: Path | None) -> list[str]:
        """Make the environment and build the runtime; return remarks for the report.

        Raises:
            SetupError: A package, a tool or a header is missing, or the runtime does not compile
                against the torch that was found.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make()
        if wheels is not None:
            self._install(wheels)
        self._check_packages()
        version, file = self._say(_TORCH).splitlines()
        self._compile(version, Path(file).parents[1])
        self._lay_out()
        self._say(_JOIN)
        return self._remarks(version)

    def _make(self) -> None:
        """Make the environment; one that was made from another interpreter is deleted first."""
        origin = self._folder / "made_from.txt"
        if not origin.exists() or origin.read_text() != sys.executable:
            for part in (self._folder / "venv", self._packages, self._build):
                shutil.rmtree(part, ignore_errors=True)
            origin.write_text(sys.executable)
        if not self.python.exists():
            venv = [sys.executable, "-m", "venv", "--without-pip", self._folder / "venv"]
            _run(venv, 120, "a virtual environment cannot be made", "Install Python's module venv")
        scheme = {"base": str(self._folder / "venv"), "platbase": str(self._folder / "venv")}
        own = Path(sysconfig.get_path("purelib", "venv", scheme))
        paths = [self._site, self._packages, ROOT, *_packages_of(sys.executable)]
        (own / "gpu_run.pth").write_text("".join(f"{path}\n" for path in paths))

    def _install(self, wheels: Path) -> None:
        """Install what the folder has wheels of."""
        if not wheels.is_dir():
            raise SetupError(
                f"WHEELS is {str(wheels)!r}",
                "there is no such folder",
                "Name a folder with wheels, or leave it out where the interpreter has torch",
            )
        names = {each.name.split("-")[0].lower().replace("_", "-") for each in wheels.glob("*.whl")}
        chosen = [name for name in (*_NEEDED, "cmake", "ninja") if name in names]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--upgrade"]
        _run(
            [*pip, "--find-links", wheels, "--target", self._packages, *chosen],
            _BUILDING_SECONDS,
            f"the wheels of {', '.join(chosen) or 'nothing that is needed'} cannot be installed",
            "The folder needs wheels of all that they depend on, for this version of Python",
        )

    def _check_packages(self) -> None:
        missing = json.loads(self._say(_FIND, *_NEEDED.values()))
        names = [name for name, module in _NEEDED.items() if module in missing]
        if names:
            raise SetupError(
                f"{sys.executable} has no {', '.join(names)}",
                "the tests on a GPU need it, and nothing is downloaded",
                _WHEELS_HINT,
                about=tuple(names),
                kind="missing",
            )

    def _compile(self, torch_version: str, torch_folder: Path) -> None:
        tools = self._tools()
        configure = [
            *(tools["cmake"], "-S", ROOT / "container", "-B", self._build),
            *("-G", "Ninja" if "ninja" in tools else "Unix Makefiles"),
            f"-DCMAKE_MAKE_PROGRAM={tools.get('ninja') or tools['make']}",
            f"-DPython_EXECUTABLE={self.python}",
            f"-DSMDIST_TORCH_DIR={torch_folder}",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        if ccache := shutil.which("ccache"):
            configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
        build = [tools["cmake"], "--build", self._build, "--target", "_C", "--parallel"]
        what = f"the runtime cannot be built against torch {torch_version}"
        hint = f"It is released for torch {RELEASED_FOR}: name a folder of wheels with that torch"
        _run(configure, _CONFIGURING_SECONDS, what, hint)
        _run([*build, str(len(os.sched_getaffinity(0)))], _BUILDING_SECONDS, what, hint)

    def _tools(self) -> dict[str, str]:
        """Return the paths of the tools that build.

        Raises:
            SetupError: Some are missing; all are named.
        """
        tools = {name: self._tool(name) for name in ("cmake", "ninja", "make")}
        faults = [] if tools["cmake"] else ["cmake"]
        if not (tools["ninja"] or tools["make"]):
            faults.append("ninja or make")
        if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
            faults.append("a C++20 compiler")
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            faults.append("Python.h (python3-dev)")
        if faults:
            raise SetupError(
                f"the machine has no {', no '.join(faults)}",
                "the runtime is compiled against the torch that was found",
                "Install it; cmake and ninja may also be wheels in the folder WHEELS",
                about=tuple(faults),
                kind="missing",
            )
        return {name: path for name, path in tools.items() if path}

    def _tool(self, name: str) -> str | None:
        # The script that pip makes of cmake looks for a package that only self.python sees.
        wheels = [self._packages / "cmake" / "data" / "bin", self._packages / "bin"]
        places = [str(each) for each in (*wheels, Path(sys.executable).parent)]
        return shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))

    def _lay_out(self) -> None:
        """Put the runtime's Python and its binding together, apart from the checkout."""
        shutil.rmtree(self._site, ignore_errors=True)
        no_binaries = shutil.ignore_patterns("__pycache__", "*.so", "built_for_torch.txt")
        shutil.copytree(ROOT / "container" / "smdist", self._site / "smdist", ignore=no_binaries)
        built = self._build / "bindings" / "torch"
        for file in (*built.glob("_C*.so"), built / "built_for_torch.txt"):
            shutil.copy2(file, self._site / "smdist" / "dataparallel" / "torch")
        for project in (ROOT / "container", ROOT):
            self._describe(project / "pyproject.toml")

    def _describe(self, project: Path) -> None:
        """Write the metadata of a distribution: ranks compare the versions of theirs."""
        text = project.read_text()
        name, version = (
            re.search(rf'^{key} = "(.+)"$', text, re.MULTILINE)[1] for key in ("name", "version")
        )
        folder = self._site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "")
        (folder / "METADATA").write_text("\n".join(lines))

    def _remarks(self, torch_version: str) -> list[str]:
        if torch_version.startswith(f"{RELEASED_FOR}."):
            return []
        return [
            f"The runtime is released for torch {RELEASED_FOR}; it was built against the torch"
            f" {torch_version} of this machine."
        ]

    def _say(self, code: str, *arguments: str) -> str:
        """Return what the environment's Python prints."""
        return _run(
            [self.python, "-c", code, *arguments],
            180,
            f"{code.split(';')[0]} fails in {self.python}",
            "Delete build/gpu and try again; PYTHON=PATH names another interpreter",
        )


def _packages_of(python: str) -> list[str]:
    """Return the folders from which an interpreter imports packages, without those of Python."""
    paths = json.loads(subprocess.check_output([python, "-c", _PATHS], text=True, timeout=60))
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    own.add(str(Path(sysconfig.get_path("stdlib")) / "lib-dynload"))
    return [each for each in paths if each and Path(each).is_dir() and each not in own]


def _run(command: list[str | Path], seconds: float, what: str, hint: str) -> str:
    """Run a command and return what it printed.

    Raises:
        SetupError: It failed or took too long; the error has its last lines.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        why = f"{Path(command[0]).name} took more than {seconds:.0f} s"
        raise SetupError(what, why, _LATE_HINT, kind="late") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise SetupError(what, "\n" + "\n".join(lines[-25:]) + "\n", hint)
    return done.stdout
