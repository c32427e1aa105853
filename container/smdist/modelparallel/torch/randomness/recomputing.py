# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are computed again draw the random numbers that they drew before.

`torch.utils.checkpoint` puts generators back to where they were and runs a function once more, in
the backward pass, when whoever seeded them for each function has gone. Here it is met where it
starts, for good; where nobody seeds, all is as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.autograd.function as functions
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointFunction

from smdist.modelparallel.torch.randomness.draws import seeding_now

_plain_generator: Any = checkpoints._checkpoint_without_reentrant_generator
_between: Any = functions._SingleLevelFunction


def follow_checkpoints() -> None:
    """Let us in: for good, and this module runs once."""
    vars(checkpoints)[_plain_generator.__name__] = _generator
    _between.apply = classmethod(_apply)


def _generator(function: Callable[..., Any], *settings: Any, **options: Any) -> Any:
    """PyTorch itself runs the function first, and what it is given here when it runs again."""
    seeding = seeding_now()
    again = function if seeding is None else seeding.again(function)
    return _plain_generator(again, *settings, **options)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    seeding = seeding_now()
    if cls is CheckpointFunction and seeding is not None:
        args = (seeding.again(args[0], runs_here=1), *args[1:])
    return super(_between, cls).apply(*args, **kwargs)
