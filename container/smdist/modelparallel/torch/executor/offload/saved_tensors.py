# SPDX-License-Identifier: Apache-2.0
"""Objects that autograd keeps in place of the tensors that it saves.

With hooks for saved tensors, autograd no longer notices that a saved tensor was changed in place
before the backward pass. So these objects check it: they keep the version counter of the tensor,
which counts its changes, without the tensor's memory.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from smdist.modelparallel.torch.executor.offload.saved_storage import SavedStorage

Place = tuple[int, int, int]  # stage, microbatch, and number of the layer in this forward pass
ALIGNMENT: Final = 512  # bytes; loaded memory begins at a multiple of it, as the allocator's does


class StayingTensor:
    """Saved tensor that stays where it is, such as a parameter.

    Args:
        tensor: The tensor.
    """

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()  # the tensor itself would keep the autograd graph alive
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: It was changed in place.
        """
        _check_version(self._tensor, self._version, self._tensor)
        return self._tensor


class MovedTensor:
    """Saved tensor whose memory is on the host.

    Args:
        tensor: The tensor.
        storage: Bytes of its storage.
        start: First byte of the tensor's storage that is in `storage`.
        place: Layer that saved the tensor.

    Attributes:
        place: The argument of the same name.
    """

    __slots__ = ("_counter", "_dtype", "_shape", "_storage", "_version", "place")

    def __init__(self, tensor: Tensor, storage: SavedStorage, start: int, place: Place) -> None:
        offset = tensor.storage_offset() - start // tensor.itemsize
        self._shape = offset, tensor.size(), tensor.stride()
        self._dtype, self._storage, self.place = tensor.dtype, storage, place
        self._counter, self._version = _version_counter(tensor), tensor._version

    def tensor(self) -> Tensor:
        """Return a tensor with the same values, strides and dtype on the device.

        Raises:
            RuntimeError: The saved tensor was changed in place.
        """
        content = self._storage.bytes()
        made = torch.empty(0, dtype=self._dtype, device=content.device)
        made.set_(content.untyped_storage(), *self._shape)
        _check_version(self._counter, self._version, made)
        return made


def _version_counter(tensor: Tensor) -> Tensor:
    """Return an empty tensor that has the version counter of another one, but no memory."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _check_version(counter: Tensor, expected: int, tensor: Tensor) -> None:
    """Raise the error that autograd raises, if a saved tensor was changed in place.

    Args:
        counter: Tensor with the version counter of the saved tensor.
        expected: Version at the time when the tensor was saved.
        tensor: Tensor with the type and size of the saved tensor.
    """
    if counter._version != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace"
            f" operation: [{tensor.type()} {list(tensor.shape)}] is at version {counter._version};"
            f" expected version {expected} instead"
        )


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte, and the byte after the last one, to copy for a tensor.

    If the tensor is more than half of its storage, the whole storage is copied, so that further
    views of it need no copy of their own. Otherwise, only its own part is copied: the storage may
    be the batch of all microbatches, for instance.

    Args:
        tensor: Tensor with at least one element.
    """
    whole = tensor.untyped_storage().nbytes()
    first = tensor.storage_offset() * tensor.itemsize
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    last = first + (1 + sum((size - 1) * stride for size, stride in pairs)) * tensor.itemsize
    if 2 * (last - first) > whole:
        return 0, whole
    return int(first - first % ALIGNMENT), int(last)


def content(tensor: Tensor, start: int, end: int) -> Tensor:
    """Return bytes of a tensor's storage as a tensor of bytes that shares the memory."""
    made: Any = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    made.set_(tensor.untyped_storage(), start, (end - start,), (1,))
    return made  # type: ignore[no-any-return]
