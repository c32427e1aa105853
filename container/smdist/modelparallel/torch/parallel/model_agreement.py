# SPDX-License-Identifier: Apache-2.0
"""Check that this rank has the model of rank 0, which has found the plan for all ranks.

A plan that the user passes may be for another model, and is checked with `Plan.check` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.fingerprint import Fingerprint, UnitPrint

_SHOWN: Final = 3  # largest number of modules that are named in one sentence


def check_model_of_rank_0(plan: Plan, graph: Graph, rank: int) -> None:
    """Raise an OptionError if the model on this rank differs from that of rank 0.

    Args:
        plan: Plan that rank 0 has found in this run, with the fingerprint of its model.
        graph: Graph of the model on this rank.
        rank: World rank of this process.
    """
    there, here = plan.fingerprint, Fingerprint.of(graph)
    faults = list(_differences(there.units, here.units))
    if there.others != here.others:
        faults.append("parameters outside of its modules differ")
    if plan.model != graph.model:
        faults.insert(0, f"it is a {graph.model}, and that of rank 0 a {plan.model}")
    if faults:
        raise OptionError(
            f"the model on rank {rank} is not that of rank 0",
            "; ".join(faults),
            "Create the same model on every rank: with the same arguments, and without code that"
            " depends on the rank",
            about="model",
            kind="difference",
        )


def _differences(there: Mapping[str, UnitPrint], here: Mapping[str, UnitPrint]) -> Iterator[str]:
    """Yield a text for each kind of difference between the modules of rank 0 and of this rank."""
    added = [repr(name) for name in here if name not in there]
    if added:
        yield f"it has {_listed(added)}, which rank 0 lacks"
    lost = [repr(name) for name in there if name not in here]
    if lost:
        yield f"it lacks {_listed(lost)}, which rank 0 has"
    changed = [
        f"{name!r} {_change(there[name], now)}"
        for name, now in here.items()
        if name in there and there[name] != now
    ]
    if changed:
        yield _listed(changed)


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _change(there: UnitPrint, here: UnitPrint) -> str:
    if there.type != here.type:
        return f"is a {here.type}, on rank 0 a {there.type}"
    if there.num_elements != here.num_elements:
        return f"has {here.num_elements:,} parameter elements, on rank 0 {there.num_elements:,}"
    return "has parameters with other names, shapes, dtypes or ties"
