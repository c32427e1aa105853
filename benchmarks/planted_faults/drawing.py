# SPDX-License-Identifier: Apache-2.0
"""Random choice of faults in a tree: first a line, then an operator that applies to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from benchmarks.planted_faults.cpp_mutants import cpp_mutants
from benchmarks.planted_faults.faults import (
    FAULTS_PER_PART,
    PARTS,
    Fault,
    FaultList,
    Mutant,
    files_of,
)
from benchmarks.planted_faults.python_mutants import is_valid, python_mutants
from benchmarks.planted_faults.workplace import Workplace

_LETTERS = {"sdk": "S", "runtime": "R", "core": "C"}


def draw(workplace: Workplace, seed: int, log: Path) -> FaultList:
    """Draw the same number of faults in each part, at most one in a function."""
    for name in ("bindings", "native-address"):
        workplace.configure(name, log)
    faults: list[Fault] = []
    for part in PARTS:
        generator = random.Random(f"{seed} {part}")
        functions: set[tuple[str, str]] = set()
        found: list[Fault] = []
        for mutant in _shuffled(mutants_of(workplace.tree, part), generator):
            key = (mutant.path, mutant.function)
            if key not in functions and works(workplace, part, mutant, log):
                functions.add(key)
                found.append(Fault(id=f"{_LETTERS[part]}{len(found) + 1:02}", mutant=mutant))
                print(found[-1].id, mutant.path, mutant.line, mutant.operator, mutant.change)
            if len(found) == FAULTS_PER_PART:
                break
        faults += found
    return FaultList(commit=workplace.commit, seed=seed, faults=tuple(faults))


def mutants_of(tree: Path, part: str) -> list[Mutant]:
    """Return every mutant of a part of a tree, in the order of its files and lines."""
    make = cpp_mutants if part == "core" else python_mutants
    return [
        mutant
        for path in files_of(tree, part)
        for mutant in make(str(path.relative_to(tree)), path.read_text())
    ]


def works(workplace: Workplace, part: str, mutant: Mutant, log: Path) -> bool:
    """Return whether the mutant compiles and differs from the original program."""
    source = (workplace.tree / mutant.path).read_text()
    if part != "core":
        return is_valid(mutant, source)
    workplace.write(mutant.path, mutant.planted_in(source))
    try:
        return workplace.compiles(mutant.path, log)
    finally:
        workplace.restore(mutant.path)


def _shuffled(mutants: list[Mutant], generator: random.Random) -> Iterator[Mutant]:
    """Yield one mutant of each line, with lines and operators in random order."""
    lines = [list(group) for _, group in groupby(mutants, key=lambda each: (each.path, each.line))]
    generator.shuffle(lines)
    for line in lines:
        operator = generator.choice(sorted({each.operator for each in line}))
        yield generator.choice([each for each in line if each.operator == operator])
