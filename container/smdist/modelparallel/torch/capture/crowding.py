# SPDX-License-Identifier: Apache-2.0
"""Whether a module that was opened should have stayed whole.

A block with a skip connection has two values under way inside and one outside: to cut inside costs
twice as much. A stage of such blocks has one value between any two of them: it is worth opening.
"""

from __future__ import annotations

from collections.abc import Iterable

from smdist.modelparallel.torch.program import Program, Ref


def crowded(program: Program, opened: Iterable[str]) -> set[str]:
    """Those of the opened modules inside which more values are under way than around them."""
    under_way = _under_way(program)
    return {name for name in opened if _is_crowded(program, name, under_way)}


def _under_way(program: Program) -> list[int]:
    """For each call, how many floating-point values are read after it, written up to it."""
    last = {name: at for at, call in enumerate(program.calls) for name in call.reads}
    end = len(program.calls)
    last.update({o.value: end for o in program.outputs if isinstance(o, Ref)})
    first = {name: at for at, call in enumerate(program.calls) for name in call.writes}
    counts = [0] * len(program.calls)
    for name, at in first.items():
        if program.facts[name].dtype.is_floating_point:
            for between in range(at, last.get(name, at)):
                counts[between] += 1
    return counts


def _is_crowded(program: Program, name: str, under_way: list[int]) -> bool:
    inside = [
        at
        for at, call in enumerate(program.calls)
        if call.module == name or call.module.startswith(f"{name}.")
    ]
    if not inside:
        return False
    first, last = inside[0], inside[-1]
    around = max(under_way[first - 1] if first else 1, under_way[last], 1)
    units = [at for at in range(first, last) if program.calls[at].is_unit]
    return any(under_way[at] > around for at in units)
