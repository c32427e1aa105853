# SPDX-License-Identifier: Apache-2.0
"""Messages of one step between the ranks of a pipeline, over the engine's sends and receives.

A message is found by its sender and its tag, so ranks need not receive in the order of sending. A
tag has the number of the value, its direction and the microbatch:

    tag = base + (2 * number + direction) * microbatches + microbatch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf

from smdist.dataparallel.tensorflow import op_library

FORWARD: Final = 0  # direction of values
BACKWARD: Final = 1  # direction of gradients
RESULTS: Final = 2**30  # base of the tags of a step's results; tags of ties begin at 2**31


@dataclass(frozen=True, slots=True)
class MessageKey:
    """Message of a step: number of its value, direction, and microbatch."""

    number: int
    direction: int
    microbatch: int


@dataclass(slots=True)
class StageMessages:
    """Sends and receives of one rank in one step.

    Attributes:
        num_microbatches: Number of microbatches of the step.
        base: Smallest tag; results of a step have other tags than values between stages.
    """

    num_microbatches: int
    base: int = 0
    _sent: list[tuple[Any, Any]] = field(default_factory=list)
    _posted: dict[tuple[MessageKey, int], tuple[Any, Any, Sequence[int]]] = field(
        default_factory=dict
    )

    def send(self, value: Any, rank: int, key: MessageKey) -> None:
        """Start to send a tensor to a world rank."""
        handle = op_library.start_send(value, rank, self._tag(key))
        self._sent.append((handle, value.dtype))

    def post(self, shape: Sequence[int], dtype: str, rank: int, key: MessageKey) -> None:
        """Start to receive a tensor from a world rank, unless this was started before."""
        if (key, rank) not in self._posted:
            handle = op_library.start_receive(shape, tf.as_dtype(dtype), rank, self._tag(key))
            self._posted[key, rank] = (handle, tf.as_dtype(dtype), shape)

    def receive(self, shape: Sequence[int], dtype: str, rank: int, key: MessageKey) -> Any:
        """Return a tensor from a world rank."""
        self.post(shape, dtype, rank, key)
        handle, kind, lengths = self._posted.pop((key, rank))
        return op_library.wait_move(handle, kind, lengths)

    def finish(self) -> None:
        """Wait until all tensors have been sent."""
        for handle, dtype in self._sent:
            op_library.wait_send(handle, dtype)
        self._sent.clear()

    def _tag(self, key: MessageKey) -> int:
        number = 2 * key.number + key.direction
        return self.base + number * self.num_microbatches + key.microbatch
