# SPDX-License-Identifier: Apache-2.0
"""Random state of a process, taken and put back: what comes after a resumption goes on."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """Of Python, NumPy (where it is used) and PyTorch, on the CPU and on this process's GPU."""
    numpy = sys.modules.get("numpy")
    has_gpu = torch.cuda.is_available()
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state() if numpy else None,
        "cuda": torch.cuda.get_rng_state() if has_gpu else None,
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Go on from there."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["numpy"] is not None:
        import numpy as np

        np.random.set_state(state["numpy"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
