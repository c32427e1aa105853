# SPDX-License-Identifier: Apache-2.0
"""Faults, and the list of faults as a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

PARTS = {
    "sdk": ("sagemaker_dist", (".py",)),
    "runtime": ("container/smdist", (".py",)),
    "core": ("container", (".cc", ".h")),
}
SEED = 27  # fixed on 2026-11-23, before the first draw
FAULTS_PER_PART = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Change of a source file in one place: the lines before and after it."""

    path: str
    line: int
    operator: str
    function: str
    change: str  # description such as "< -> <="
    before: str
    after: str

    def planted_in(self, text: str) -> str:
        """Return the file's text with the change.

        Raises:
            LookupError: The text does not have the lines to change.
        """
        lines = text.splitlines(keepends=True)
        first, count = self.line - 1, len(self.before.splitlines())
        found = "".join(lines[first : first + count]).rstrip("\n")
        if found != self.before:
            raise LookupError(f"{self.path}:{self.line} is not what the fault changes: {found!r}")
        return "".join([*lines[:first], self.after + "\n", *lines[first + count :]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Mutant with an identifier and an origin.

    Attributes:
        origin: "drawn"; in a later tree "same line", "changed line" or "replaced".
        original: The first line of the corresponding drawn fault, in the tree of the draw.
    """

    id: str
    mutant: Mutant
    origin: str = "drawn"
    original: str = ""

    @property
    def part(self) -> str:
        """Return "sdk", "runtime" or "core"."""
        return {"S": "sdk", "R": "runtime", "C": "core"}[self.id[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultList:
    """List of the faults of one commit."""

    commit: str
    seed: int
    faults: tuple[Fault, ...]

    def save(self, path: Path) -> None:
        """Write the list as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> FaultList:
        """Read a list that `save` wrote."""
        data = json.loads(path.read_text())
        faults = tuple(
            Fault(**{**each, "mutant": Mutant(**each["mutant"])}) for each in data["faults"]
        )
        return cls(commit=data["commit"], seed=data["seed"], faults=faults)


def files_of(tree: Path, part: str) -> list[Path]:
    """Return the source files of a part, sorted."""
    folder, suffixes = PARTS[part]
    roots = [tree / folder]
    if part == "core":
        roots = [tree / folder / name for name in ("src", "bindings", "include")]
    return sorted(
        path
        for root in roots
        for path in root.rglob("*")
        if path.suffix in suffixes and "build" not in path.relative_to(tree).parts
    )
