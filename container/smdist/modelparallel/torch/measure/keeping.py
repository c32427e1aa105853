# SPDX-License-Identifier: Apache-2.0
"""Shares out what is kept for the backward pass, so that no memory counts twice.

    Linear ─> h ─> ReLU ─> r ─> Linear        ReLU keeps r, and so does the second Linear:
                                               r counts at the ReLU, the first that keeps it

A value counts whole at the first call that keeps it, whether that made it or takes it; views are
the value that they look at. The batch does not count: it is there all the time. Every call that
keeps a value says so by name: after a cut between two of them, it is there on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

from smdist.modelparallel.torch.measure.account import Account
from smdist.modelparallel.torch.program import Call


class Keeping:
    """Goes through a program's calls in order.

    Args:
        inputs: Values of the batch.
    """

    def __init__(self, inputs: Iterable[str]) -> None:
        self._memory = {name: name for name in inputs}
        self._num_bytes = dict.fromkeys(self._memory, 0)
        self._counted = set(self._memory)

    def kept(self, call: Call, account: Account) -> tuple[int, tuple[str, ...]]:
        """Bytes that a call keeps and none before it does, and the values that it keeps."""
        kept = [call.reads[position] for position in sorted(account.kept_inputs)]
        for name, output in zip(call.writes, account.outputs, strict=True):
            if output.input is None:
                memory = call.writes[output.storage]
                self._num_bytes[memory] = output.num_bytes
            else:
                memory = self._memory[call.reads[output.input]]
            self._memory[name] = memory
            if output.is_kept:
                kept.append(name)
        memories = dict.fromkeys(self._memory[name] for name in kept)
        keeps = tuple(memory for memory in memories if self._num_bytes[memory])
        fresh = memories.keys() - self._counted
        self._counted |= fresh
        return account.hidden_bytes + sum(self._num_bytes[memory] for memory in fresh), keeps
