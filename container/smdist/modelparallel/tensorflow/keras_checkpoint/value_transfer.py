# SPDX-License-Identifier: Apache-2.0
"""Transfer of the values of all stages to rank 0, one by one, while it writes a checkpoint.

Every other rank sends each value that it is the home of; a send waits until rank 0 asks for the
value. So rank 0 needs memory for one value at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from smdist.dataparallel.tensorflow import op_library

_TAG: Final = 2**31 + 2**30 + 2**29  # tags of checkpoints are above those of first values

_SMALL: Final = 16  # elements of values that are kept


@dataclass(frozen=True, slots=True)
class RemoteValue:
    """Value that rank 0 needs and another rank has.

    Attributes:
        number: Number of the value in the checkpoint, equal on all ranks.
        rank: World rank that has the value.
        shape: Shape of the value.
        dtype: Dtype of the value.
    """

    number: int
    rank: int
    shape: tuple[int, ...]
    dtype: str


class Fetcher:
    """Values of other ranks on rank 0, each received when it is first read.

    Args:
        values: Values that other ranks have.
        keeps: True to keep all values, so that each may be read several times; small values are
            kept in any case.
    """

    def __init__(self, values: Sequence[RemoteValue], *, keeps: bool = False) -> None:
        self._open = {each.number: each for each in values}
        self._keeps, self._kept = keeps, dict[int, Any]()

    def function(self, number: int) -> Callable[[], Any]:
        """Return a function that receives a value."""
        return lambda: self._receive(number)

    def drain(self) -> None:
        """Receive and drop all values that were not read, so that no sender waits."""
        for number in list(self._open):
            self._receive(number)

    def _receive(self, number: int) -> Any:
        if number in self._kept:
            return self._kept[number]
        value = self._open.pop(number)
        dtype = tf.as_dtype(value.dtype)
        handle = op_library.start_receive(value.shape, dtype, value.rank, _TAG + number)
        found = op_library.wait_move(handle, dtype, value.shape).numpy()
        if self._keeps or found.size <= _SMALL:
            self._kept[number] = found
        return found


def serve(values: Mapping[int, Any]) -> None:
    """Send values to rank 0, and wait until it has received all of them.

    Args:
        values: Tensor or variable of each value that this rank is the home of, by its number.
    """
    sends = []
    for number, value in values.items():
        tensor = tf.convert_to_tensor(value)
        sends.append((op_library.start_send(tensor, 0, _TAG + number), tensor.dtype))
    for handle, dtype in sends:
        op_library.wait_send(handle, dtype)
