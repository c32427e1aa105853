# SPDX-License-Identifier: Apache-2.0
"""Hints about steps that a script seems to have left out: rank 0 prints a line, training goes on.

Calls record facts when Python runs them, in a tf.function when it is traced. Facts
stay until the process ends, also after shutdown(), because functions are not traced again.
"""

from __future__ import annotations

import sys
from typing import Final

GRADIENTS: Final = "gradients were reduced by a tape or an optimizer of ours"
BY_HAND: Final = "the script reduces or gathers tensors, which may be gradients"
WEIGHTS: Final = "values came from one rank, or all ranks loaded one file"
OPTIMIZER: Final = "an optimizer's variables came from one rank: the script trains"

WRAP: Final = "Wrap the optimizer in DistributedOptimizer, or the tape in DistributedGradientTape"
BROADCAST: Final = (
    "Pass BroadcastGlobalVariablesCallback(0) to fit(), or call"
    " broadcast_variables(model.variables, root_rank=0)"
)

_facts: set[str] = set()
_said: set[str] = set()


def note(fact: str) -> None:
    """Record that the fact is true of this process."""
    _facts.add(fact)


def are_gradients_reduced() -> bool:
    """Return whether a call, or a traced tf.function, may have reduced gradients."""
    return bool(_facts & {GRADIENTS, BY_HAND})


def warn(line: str) -> None:
    """Print a line, once in this process."""
    if line not in _said:
        _said.add(line)
        sys.stderr.write(f"smdist: {line}\n")


def look_back(size: int, calls: int) -> None:
    """Print a hint when rank 0 leaves, unless one was printed before.

    Nothing is printed after an error, so that the error is the last message.

    Args:
        calls: Number of collectives that have ended.
    """
    has_raised = sys.exc_info()[0] or getattr(sys, "last_value", None) is not None
    if size == 1 or _said or has_raised:
        return
    if calls == 0:
        warn(
            f"rank 0 of {size} has called no collective: if this script trains, each rank"
            f" trained a model of its own. {WRAP}"
        )
    elif OPTIMIZER in _facts and not are_gradients_reduced():
        warn(f"no gradients were averaged: each rank trained a model of its own. {WRAP}")
    elif GRADIENTS in _facts and WEIGHTS not in _facts:
        warn(
            "weights were never broadcast: if ranks began with different ones, they are"
            f" different still. {BROADCAST}"
        )
