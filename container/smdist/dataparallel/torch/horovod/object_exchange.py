# SPDX-License-Identifier: Apache-2.0
"""Python objects sent between ranks: they are pickled, so the ranks of a job trust each other."""

from __future__ import annotations

import pickle
from typing import Any, Final

import torch

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch.horovod.allgather_calls import allgather
from smdist.dataparallel.torch.horovod.broadcast_calls import broadcast_, root_in
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)

_FAILED: Final = -1  # length of an object that cannot be pickled


@after_init
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the object of rank `root_rank` to all ranks, and return it.

    Args:
        obj: The object to send; not used on the other ranks.
        root_rank: The rank of the job that sends.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Raises:
        OptionError: The object cannot be pickled (raised on all ranks), or the root does not
            exist.
        HorovodInternalError: A rank was lost.
    """
    is_root = process_set.communicator().rank == root_in(process_set, root_rank)
    data, fault = _packed(obj) if is_root else (b"", None)
    length = torch.tensor([_FAILED if fault else len(data)])
    broadcast_(length, root_rank, name, process_set)
    _check_packed(fault, [root_rank] if int(length) == _FAILED else [], "broadcast_object")
    content = _tensor(data) if is_root else torch.empty(int(length), dtype=torch.uint8)
    broadcast_(content, root_rank, name, process_set)
    return obj if is_root else _unpacked(content)


@after_init
def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in the order of the ranks.

    Args:
        obj: This rank's object.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Raises:
        OptionError: An object of any rank cannot be pickled (raised on all ranks).
        HorovodInternalError: A rank was lost.
    """
    data, fault = _packed(obj)
    lengths = allgather(torch.tensor([_FAILED if fault else len(data)]), name, process_set)
    failed = [rank for rank, length in enumerate(lengths.tolist()) if length == _FAILED]
    _check_packed(fault, failed, "allgather_object")
    every = allgather(_tensor(data), name, process_set)
    parts = every.split(lengths.tolist())  # type: ignore[no-untyped-call]
    return [_unpacked(part) for part in parts]


def _packed(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # the object's own code may raise any error
        return b"", error


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(content: torch.Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())  # noqa: S301  of another rank of the same job


def _check_packed(fault: Exception | None, ranks: list[int], function: str) -> None:
    if ranks:
        raise OptionError(
            f"{function}() received an object on rank {ranks[0]} that cannot be pickled",
            str(fault) if fault else "the error on that rank has the reason",
            "Pass an object that pickle supports, such as numbers, texts, lists, dicts and arrays",
            about="obj",
            kind="not_picklable",
        ) from fault
