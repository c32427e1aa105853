# SPDX-License-Identifier: Apache-2.0
"""A copy of the runtime whose binding has all bugs, each behind a number in the environment.

One build serves all bugs: a statement becomes `if (planted_bug() == 3) { wrong } else { right }`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.planted_stream_bugs.bugs import BUGS, Bug

VARIABLE = "SMDIST_PLANTED_BUG"
ROOT = Path(__file__).parents[2]
_STAGING = "bindings/torch/staging"
_HEADER = f"""// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdlib>
namespace smdist::torch_binding {{
// Return the number of the bug that is planted; 0 for none.
inline int planted_bug() {{
  static const char* const text = std::getenv("{VARIABLE}");
  return text == nullptr ? 0 : std::atoi(text);
}}
}}  // namespace smdist::torch_binding
"""


def planted(text: str, bugs: Iterable[tuple[int, Bug]]) -> str:
    """Return the text of a source file with the bugs, each with its number.

    Raises:
        ValueError: A statement does not occur exactly once.
    """
    wrong: dict[str, str] = {}
    for number, bug in bugs:
        if text.count(bug.statement) != 1:
            count = text.count(bug.statement)
            raise ValueError(f"{bug.file} has {bug.statement!r} {count} times, not once")
        branch = f"if (planted_bug() == {number}) {{ {bug.instead} }} else "
        wrong[bug.statement] = wrong.get(bug.statement, "") + branch
    for right, branches in wrong.items():
        text = text.replace(right, f"{branches}{{ {right} }}")
    return text.replace('#include "', '#include "planted_bug.h"\n#include "', 1)


def build(folder: Path) -> Path:
    """Build the binding with all bugs below a folder, and return the directory of the runtime."""
    runtime = folder / "container"
    shutil.rmtree(runtime, ignore_errors=True)
    shutil.copytree(ROOT / "container", runtime, ignore=shutil.ignore_patterns("_C*.so", "build"))
    (runtime / _STAGING / "planted_bug.h").write_text(_HEADER)
    for file in sorted({bug.file for bug in BUGS}):
        path = runtime / _STAGING / file
        numbered = [(number, bug) for number, bug in enumerate(BUGS, 1) if bug.file == file]
        path.write_text(planted(path.read_text(), numbered))
    tools = Path(sys.executable).parent
    configure = [tools / "cmake", "-S", runtime, "-B", folder / "build/rt", "-G", "Ninja"]
    configure += [
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    configure += ["-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DSMDIST_TORCH_DIR={Path(torch.__file__).parents[1]}"]
    if ccache := shutil.which("ccache"):
        configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    for command in (configure, [tools / "cmake", "--build", folder / "build/rt", "--target", "_C"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    torch_binding = runtime / "smdist/dataparallel/torch"
    for built in (folder / "build/rt/bindings/torch").glob("_C*.so"):
        shutil.copy2(built, torch_binding)
    return runtime
