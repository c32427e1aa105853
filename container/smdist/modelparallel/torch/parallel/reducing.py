# SPDX-License-Identifier: Apache-2.0
"""When gradients are reduced over replicas: once in a series of backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smdist.modelparallel.torch.parallel.cut import Split
from smdist.modelparallel.torch.parallel.state import State


@contextmanager
def complete(state: State, split: Split) -> Iterator[bool]:
    """Around one backward pass of all microbatches; what it yields says whether it is the last.

    Gradients of the passes of one series add up on each replica; the last pass reduces them.
    """
    series = state.settings.passes_per_step
    if state.passes % series == 0:
        split.replicas.begin()
    state.passes += 1
    is_last = state.passes % series == 0
    yield is_last
    if is_last:
        with split.guarded("the sum of gradients"):
            split.replicas.finish()
    state.step_number += 1


class Hooks:
    """Those of the replicas, which reduce only where a series of passes is complete."""

    def __init__(self, state: State) -> None:
        self._state = state

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Before each backward action."""
        assert self._state.split is not None
        self._state.split.replicas.hooks.before_backward(stage, is_last and self._reduces)

    def after_backward(self, stage: int, is_last: bool) -> None:
        """After it."""
        assert self._state.split is not None
        self._state.split.replicas.hooks.after_backward(stage, is_last and self._reduces)

    @property
    def _reduces(self) -> bool:
        return self._state.passes % self._state.settings.passes_per_step == 0
