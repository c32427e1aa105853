# SPDX-License-Identifier: Apache-2.0
"""GPUs that run the compiled code of a framework.

A CUDA build of a framework holds machine code for some GPUs ("sm_80") and perhaps intermediate code
("compute_120", PTX), which the driver compiles for newer GPUs. Source: NVIDIA, CUDA Programming
Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific Architecture Features", read
2026-11-26.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_TARGET: Final = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(code: Iterable[str], capability: str) -> bool:
    """Return whether code for these targets runs on GPUs of a compute capability, such as "8.6".

    Machine code runs on the same and on later minor versions of its major version, intermediate
    code on all later versions. Code for one architecture (a letter "a", as in "sm_90a") runs on
    that version alone, code for a family ("f") on later minor versions. Targets of another form
    count as code that runs nowhere.
    """
    major, minor = (int(part) for part in capability.split("."))
    return any(_target_runs(target, (major, minor)) for target in code)


def _target_runs(target: str, capability: tuple[int, int]) -> bool:
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    built_for = int(match[2]), int(match[3])
    if match[4] == "a":
        return built_for == capability
    is_same_major = built_for[0] == capability[0]
    return built_for <= capability and (is_same_major or (match[1] == "compute" and not match[4]))
