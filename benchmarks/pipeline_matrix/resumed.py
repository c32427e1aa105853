# SPDX-License-Identifier: Apache-2.0
"""Checkpoint cases: saved under every layout, loaded under every layout."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.report import table
from benchmarks.pipeline_matrix.tools import LAYOUTS, World, pairs

APART = 5e-6  # losses are equal to 5 decimals
TITLES = {
    "plain": "one process, no smp",
    "one": "1 stage",
    "two": "2 stages",
    "four": "4 stages",
    "two_by_two": "2 stages x 2 replicas",
    "sharded": "the same, FSDP2 full",
    "hybrid": "4 replicas, FSDP2 in twos",
    "virtual": "2 ranks, 4 virtual stages",
}
Apart = Mapping[tuple[str, str], float]


def resumed(world: World) -> Apart:
    """Return the difference of losses after a checkpoint, by (saved layout, loaded layout)."""
    with tempfile.TemporaryDirectory() as folder:
        return pairs(world, Path(folder))


def on_layouts(apart: Apart) -> str:
    """Return the table of layouts: saved under the row, loaded under the column."""
    head = ["saved under", *(TITLES[name] for name in LAYOUTS)]
    rows = [[TITLES[tag], *(_cell(apart[tag, name]) for name in LAYOUTS)] for tag in LAYOUTS]
    return table(head, rows)


def wrong(apart: Apart) -> list[str]:
    """Return the pairs of layouts whose losses differ."""
    return [
        f"{TITLES[tag]} -> {TITLES[name]}: losses {found:.1e} apart"
        for (tag, name), found in apart.items()
        if not found <= APART
    ]


def _cell(found: float) -> str:
    return f"{found:.0e}" if found else "0"
