# SPDX-License-Identifier: Apache-2.0
"""Hints that rank 0 prints if a script seems not to average gradients or not to broadcast weights.

When a function of smdist runs, it records a fact, such as that gradients were reduced. A function
that is called inside a tf.function records its fact when the tf.function is traced. Facts are kept
until the process ends, even after shutdown(), because a tf.function is not traced again.
"""

from __future__ import annotations

import sys
from typing import Final

GRADIENTS: Final = "smdist's tape or optimizer has reduced gradients"
MANUAL: Final = "the script has reduced or gathered tensors, which may be gradients"
WEIGHTS: Final = "tensors were broadcast, or all ranks have loaded the same model"
OPTIMIZER: Final = "an optimizer's variables were broadcast, so the script trains"

WRAP: Final = "Wrap the optimizer in DistributedOptimizer, or the tape in DistributedGradientTape"
BROADCAST: Final = (
    "Pass BroadcastGlobalVariablesCallback(0) to fit(), or call"
    " broadcast_variables(model.variables, root_rank=0)"
)

_facts: set[str] = set()
_printed: set[str] = set()


def note(fact: str) -> None:
    """Record what the script has done, for the hints that rank 0 prints at the end.

    `fact` is a constant of this module. GRADIENTS, for example, says that gradients were reduced.
    """
    _facts.add(fact)


def are_gradients_reduced() -> bool:
    """Return True if this process has called a function that reduces or gathers tensors."""
    return bool(_facts & {GRADIENTS, MANUAL})


def warn(line: str) -> None:
    """Print a line on stderr, unless this process has printed it before."""
    if line not in _printed:
        _printed.add(line)
        sys.stderr.write(f"smdist: {line}\n")


def hint_at_exit(size: int, calls: int) -> None:
    """Print a hint if the script did not average gradients or did not broadcast weights.

    Rank 0 calls this function at the end of the script. Print nothing if a hint was printed before,
    or if an error ends the script: the error must be the last message.

    Args:
        size: Number of ranks of the job.
        calls: Number of collectives that this process has called, whether or not they ended.
    """
    has_raised = sys.exc_info()[0] or getattr(sys, "last_value", None) is not None
    if size == 1 or _printed or has_raised:
        return
    if calls == 0:
        warn(
            f"rank 0 of {size} ranks has called no collective. If this script trains, each rank"
            f" has trained a separate model. {WRAP}"
        )
    elif OPTIMIZER in _facts and not are_gradients_reduced():
        warn(f"no gradients were averaged, so each rank has trained a separate model. {WRAP}")
    elif GRADIENTS in _facts and WEIGHTS not in _facts:
        warn(
            "weights were never broadcast. If ranks began with different weights, their models"
            f" are still different. {BROADCAST}"
        )
