# SPDX-License-Identifier: Apache-2.0
"""Copy of a tree in which faults are planted and tests run, with a .venv and compiled parts.

The copy's .venv puts the copy's two distributions before the packages of the running interpreter,
so that a changed line takes effect and nothing is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.planted_faults import recorder

_KEPT = {".venv", "build", "__pycache__", ".hypothesis"}
_NOT_INHERITED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # write() removes outdated bytecode


class BuildError(Exception):
    """C++ code does not compile; the message is the output of the compiler."""


class Workplace:
    """Copy of one tree.

    Attributes:
        tree: The original, which is only read.
        root: The copy.
    """

    def __init__(self, tree: Path, root: Path) -> None:
        self.tree, self.root = tree.resolve(), root.resolve()
        self.bin = self.root / ".venv/bin"
        self.root.mkdir(parents=True, exist_ok=True)
        self._copy()
        if not (self.bin / "python").exists():
            self._make_venv()
        self._extend_venv()

    @property
    def commit(self) -> str:
        """Return the hash of the tree's commit, with "+" if files differ from it."""
        head = _output(["git", "rev-parse", "HEAD"], self.tree)
        return head + ("+" if _output(["git", "status", "--porcelain"], self.tree) else "")

    # Sources

    def _copy(self) -> None:
        names = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        wanted = {name for name in _output(names, self.tree).split("\0") if name}
        wanted = {name for name in wanted if (self.tree / name).is_file()}
        for name in sorted(wanted):
            source, target = self.tree / name, self.root / name
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)
        for path in [*self.root.rglob("*")]:
            name = path.relative_to(self.root)
            is_source = path.is_file() and not _KEPT & set(name.parts)
            is_compiled = path.suffix == ".so" or path.name.startswith("built_for")
            if is_source and not is_compiled and str(name) not in wanted:
                path.unlink()

    def write(self, path: str, text: str) -> None:
        """Write a source file so that neither Python nor ninja uses an older result for it."""
        target = self.root / path
        target.write_text(text)
        for cached in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            cached.unlink()

    def restore(self, path: str) -> None:
        """Restore the file from the tree."""
        self.write(path, (self.tree / path).read_text())

    # Python

    def _make_venv(self) -> None:
        venv.create(self.root / ".venv", with_pip=False, symlinks=True)
        ours = Path(sys.executable).parent
        for command in sorted(ours.iterdir()):
            target = self.bin / command.name
            is_python = command.name.startswith(("python", "pip", "activate", "Activate"))
            if target.exists() or is_python or not command.is_file():
                continue
            data = command.read_bytes()
            if data.startswith(b"#!"):
                target.write_bytes(data.replace(bytes(ours.parent), bytes(self.root / ".venv"), 1))
                target.chmod(0o755)
            else:
                target.symlink_to(command.resolve())

    def _extend_venv(self) -> None:
        packages = next((self.root / ".venv/lib").glob("python*/site-packages"))
        below = [entry for entry in sys.path if entry.endswith("site-packages")]
        lines = [str(self.root), str(self.root / "container"), *below]
        (packages / "000_copy.pth").write_text("\n".join(lines) + "\n")
        shutil.copyfile(recorder.__file__, packages / f"{recorder.NAME}.py")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of tests in the copy."""
        clean = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {**clean, "PATH": path, **more}

    def run(
        self, command: Sequence[str | Path], seconds: float, log: Path, **environment: str
    ) -> int | None:
        """Run a command in the copy and return its exit status, or None if it exceeds its time."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            out.write(f"\n$ {shlex.join(map(str, command))}\n".encode())
            out.flush()
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(process)

    # C++

    def take_bindings(self, log: Path) -> None:
        """Copy the tree's compiled parts if they are up to date; otherwise compile them."""
        compiled = [
            path
            for pattern in ("*.so", "built_for*")
            for path in (self.tree / "container/smdist").rglob(pattern)
        ]
        sources = [
            path
            for folder in ("src", "include", "bindings")
            for path in (self.tree / "container" / folder).rglob("*")
            if path.is_file()
        ]
        newest = max(path.stat().st_mtime for path in sources)
        if compiled and min(path.stat().st_mtime for path in compiled) >= newest:
            for path in compiled:
                target = self.root / path.relative_to(self.tree)
                shutil.copy2(path, target)
        else:
            self.build_bindings(log)

    def build_bindings(self, log: Path) -> None:
        """Compile both bindings in release mode and put them where the runtime imports them.

        Raises:
            BuildError: They do not compile.
        """
        build = self.configure("bindings", log)
        self._build(build, log)
        for source in sorted((build / "bindings").iterdir()):
            target = self.root / "container/smdist/dataparallel" / source.name
            for path in [*source.glob("*.so"), *source.glob("built_for*")]:
                target.mkdir(parents=True, exist_ok=True)
                new = target / f".{path.name}.new"
                shutil.copy2(path, new)
                new.replace(target / path.name)

    def build_native(self, log: Path) -> Path:
        """Compile the native tests with AddressSanitizer and return their folder.

        Raises:
            BuildError: They do not compile.
        """
        build = self.configure("native-address", log)
        self._build(build, log)
        return build

    def configure(self, name: str, log: Path) -> Path:
        """Configure "bindings" or "native-address" with cmake and return the build's folder."""
        options = {
            "bindings": [],
            "native-address": [
                "-DSMDIST_CORE_ONLY=ON",
                "-DSMDIST_BUILD_TESTS=ON",
                "-DSMDIST_SANITIZE=address",
            ],
        }
        build = self.root / "build" / name
        command = [
            *(self.bin / "cmake", "-S", "container", "-B", build, "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={self.bin / 'ninja'}",
            "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
            f"-DPython_EXECUTABLE={self.bin / 'python'}",
            f"-DSMDIST_TORCH_DIR={_folder_of('torch')}",
            f"-DSMDIST_TENSORFLOW_DIR={_folder_of('tensorflow')}",
            f"-DSMDIST_TENSORFLOW_HEADERS={_folder_of('tensorflow')}/tensorflow/include",
            *options[name],
        ]
        if self.run(command, 300, log):
            raise BuildError(f"cmake failed: {log}")
        return build

    def _build(self, build: Path, log: Path) -> None:
        if (
            self.run([self.bin / "cmake", "--build", build, "-j", str(os.cpu_count())], 3600, log)
            != 0
        ):
            raise BuildError(f"the C++ does not build: {log}")

    def compiles(self, path: str, log: Path) -> bool:
        """Return whether files that are or include `path` compile, in both builds."""
        commands = []
        for build in ("bindings", "native-address"):
            database = self.root / "build" / build / "compile_commands.json"
            entries = json.loads(database.read_text())
            commands += _spread([each for each in entries if self._reads(each["file"], path)])
        for entry in commands:
            command = shlex.split(entry["command"])
            command[command.index("-o") + 1] = os.devnull
            begin = time.monotonic()
            code = self.run(["env", "-C", entry["directory"], *command], 600, log)
            with log.open("a") as out:
                out.write(f"{code} after {time.monotonic() - begin:.1f} s\n")
            if code != 0:
                return False
        return bool(commands)

    def _reads(self, file: str, path: str) -> bool:
        """Return whether a source file is `path` or includes it, also through other headers."""
        wanted = self.root / path
        seen: set[Path] = set()
        waiting = [Path(file)]
        folders = [self.root / "container" / name for name in ("src", "include")]
        while waiting:
            current = waiting.pop()
            if current in seen or not current.is_file():
                continue
            seen.add(current)
            for line in current.read_text(errors="replace").splitlines():
                if line.startswith('#include "'):
                    name = line.split('"')[1]
                    nearby = [current.parent, *folders]
                    waiting += [Path(os.path.normpath(each / name)) for each in nearby]
        return wanted in seen


def _spread(entries: list[dict[str, str]], most: int = 4) -> list[dict[str, str]]:
    step = max(1, len(entries) // most)
    return entries[::step][:most]


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return str(Path(spec.origin).parents[1]) if spec and spec.origin else ""


def _output(command: Sequence[str], folder: Path) -> str:
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill processes that a command left running, such as ninja's compilers or hanging ranks."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        for each in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # processes whose parents have ended
    process.wait()


def variables(record: Path, passed_over: Sequence[str], most_failed: int) -> Mapping[str, str]:
    """Return environment variables with which any pytest process records its first failures."""
    left_out = "".join(f" --deselect {shlex.quote(each)}" for each in passed_over)
    options = f"--maxfail={most_failed} -p {recorder.NAME} -p no:cacheprovider{left_out}"
    return {"PYTEST_ADDOPTS": options, recorder.RECORD: str(record)}
