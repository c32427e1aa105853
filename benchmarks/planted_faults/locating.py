# SPDX-License-Identifier: Apache-2.0
"""Search for the faults of one commit in a later tree, by the text of their lines.

1. "same line": the same lines, except white space, with the same mutant. If there are several, the
   choice prefers the same file (or its new name), the same function, and similar lines around.
2. "changed line": the most similar mutant with the same operator, because names change.
3. "replaced": no line is similar. A line is drawn, with the same operator, in the file that is the
   successor of the old one, or in the whole part if the file has no successor.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

from benchmarks.planted_faults.drawing import mutants_of, works
from benchmarks.planted_faults.faults import Fault, FaultList, Mutant
from benchmarks.planted_faults.workplace import Workplace

_LIKE = 0.68  # minimum similarity of the lines of a mutant and its surroundings, up to 1
_AROUND = 4  # lines compared before and after the mutant
_MOST_COMPARED = 60


@dataclass(frozen=True, slots=True)
class Scored:
    """Mutant of the later tree with its similarity to the old one, from 0 to 1."""

    score: float
    is_same: bool
    mutant: Mutant


def locate(workplace: Workplace, faults: FaultList, log: Path) -> FaultList:
    """Return the faults as they are in the workplace's tree, with the same names."""
    for name in ("bindings", "native-address"):
        workplace.configure(name, log)
    successors = _successors(workplace.tree, faults.commit)
    taken: set[Mutant] = set()
    found = []
    for fault in faults.faults:
        located = _locate_one(workplace, faults, fault, successors, taken, log)
        taken.add(located.mutant)
        found.append(located)
        print(located.id, located.origin, f"{located.mutant.path}:{located.mutant.line}")
        print(f"   {fault.mutant.before.strip()}\n   {located.mutant.before.strip()}")
    return FaultList(commit=workplace.commit, seed=faults.seed, faults=tuple(found))


def _locate_one(
    workplace: Workplace,
    faults: FaultList,
    fault: Fault,
    successors: dict[str, str],
    taken: set[Mutant],
    log: Path,
) -> Fault:
    tree, part, old = workplace.tree, fault.part, fault.mutant
    original = old.before.strip().splitlines()[0]
    path = successors.get(old.path, old.path)
    same_operator = [
        each
        for each in _mutants_of(tree, part)
        if each.operator == old.operator and each not in taken
    ]
    scored = likest(tree, old, _text_at(tree, faults.commit, old.path), path, same_operator)
    for each in scored:
        if (each.is_same or each.score >= _LIKE) and works(workplace, part, each.mutant, log):
            origin = "same line" if each.is_same else "changed line"
            return replace(fault, mutant=each.mutant, origin=origin, original=original)
    generator = random.Random(f"{faults.seed} {fault.id}")
    nearby = [each for each in same_operator if each.path == path]
    generator.shuffle(nearby)
    generator.shuffle(same_operator)
    for mutant in [*nearby, *same_operator]:
        if works(workplace, part, mutant, log):
            return replace(fault, mutant=mutant, origin="replaced", original=original)
    raise LookupError(f"{fault.id}: no line takes the operator {old.operator!r}")


def likest(
    tree: Path, old: Mutant, old_text: str, path: str, mutants: list[Mutant]
) -> list[Scored]:
    """Return the most similar mutants, best first; identical lines come before all others.

    Args:
        old_text: The text of the old mutant's file.
        path: The successor of that file in `tree`.
    """
    context = _context(old_text, old)
    wanted = Counter(_words(old.before))
    by_words = sorted(
        mutants, key=lambda each: (-_overlap(wanted, each.before), each.path, each.line)
    )
    found = []
    for mutant in by_words[:_MOST_COMPARED]:
        is_same = _flat(mutant.before) == _flat(old.before) and mutant.change == old.change
        around = _context((tree / mutant.path).read_text(), mutant)
        score = (
            0.45 * _alike(_flat(old.before), _flat(mutant.before))
            + 0.25 * _alike(_flat(old.after), _flat(mutant.after))
            + 0.15 * _alike("\n".join(context), "\n".join(around))
            + 0.10 * (mutant.path == path)
            + 0.05 * (mutant.function.split(".")[-1] == old.function.split(".")[-1])
        )
        found.append(Scored(score, is_same, mutant))
    return sorted(found, key=lambda each: (-each.is_same, -each.score))


@cache
def _mutants_of(tree: Path, part: str) -> list[Mutant]:
    return mutants_of(tree, part)


def _successors(tree: Path, commit: str) -> dict[str, str]:
    """Return git's renames as a map from old path to new path."""
    shown = subprocess.run(
        ["git", "diff", "-M40%", "-l0", "--name-status", commit.rstrip("+")],
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split("\t") for line in shown.splitlines()]
    return {row[1]: row[2] for row in rows if row[0].startswith("R")}


def _text_at(tree: Path, commit: str, path: str) -> str:
    return subprocess.run(
        ["git", "show", f"{commit.rstrip('+')}:{path}"],
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def _context(text: str, mutant: Mutant) -> list[str]:
    lines = text.splitlines()
    first, last = mutant.line - 1, mutant.line - 1 + len(mutant.before.splitlines())
    around = lines[max(0, first - _AROUND) : first] + lines[last : last + _AROUND]
    return [_flat(line) for line in around]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def _overlap(wanted: Counter[str], text: str) -> float:
    other = Counter(_words(text))
    return (wanted & other).total() / max(1, (wanted | other).total())


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
