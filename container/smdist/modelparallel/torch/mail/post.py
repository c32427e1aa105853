# SPDX-License-Identifier: Apache-2.0
"""Objects over any process group that carries CPU tensors: sent, shared, gathered.

Sends and receives use one tag of a group that nobody else sends over. What is shared or gathered
goes by the group's collectives, which never meet the sends and receives of a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import BarrierOptions

from smdist.modelparallel.torch.mail.letter import Arrived, Letter, collect, empty_head, pack

T = TypeVar("T")
_TAG: Final = 0


def post(obj: object, to: Sequence[int], group: dist.ProcessGroup) -> None:
    """Send an object to some ranks of a group; back when all of them have taken it."""
    letter = pack(obj)
    works = [
        dist.isend(piece, group=group, group_dst=rank, tag=_TAG)
        for piece in letter.pieces
        for rank in to
    ]
    for work in works:
        if work is not None:
            work.wait()
    _raise_failure(letter)


def take(source: int, group: dist.ProcessGroup) -> Any:
    """Receive what a rank of the group sent.

    Raises:
        UnsentError: It could not be pickled there.
    """

    def fetch(buffer: Tensor) -> None:
        dist.recv(buffer, group=group, group_src=source, tag=_TAG)

    head = empty_head()
    fetch(head)
    return collect(head, fetch).read(_name(source, group))


def share(obj: T, source: int, group: dist.ProcessGroup) -> T:
    """Give every rank of a group the object of one; what others pass is ignored.

    Raises:
        UnsentError: It could not be pickled there; the source itself raises why.
    """
    if group.size() == 1:
        return obj
    fetch = partial(_broadcast, source=source, group=group)
    if group.rank() == source:
        letter = pack(obj)
        for piece in letter.pieces:
            fetch(piece)
        _raise_failure(letter)
        return obj
    head = empty_head()
    fetch(head)
    shared: T = collect(head, fetch).read(_name(source, group))
    return shared


def gather(obj: T, group: dist.ProcessGroup) -> list[T]:
    """Give every rank of a group the objects of all, in group order.

    Raises:
        UnsentError: One could not be pickled where it is; that rank raises why.
    """
    if group.size() == 1:
        return [obj]
    letter = pack(obj)
    heads = [empty_head() for _ in range(group.size())]
    dist.all_gather(heads, letter.head, group=group)
    arrived = [_gathered(head, rank, letter, group) for rank, head in enumerate(heads)]
    _raise_failure(letter)
    return [
        obj if rank == group.rank() else each.read(_name(rank, group))
        for rank, each in enumerate(arrived)
    ]


def wait_for_all(group: dist.ProcessGroup) -> None:
    """Back when every rank of the group is here."""
    options = BarrierOptions()
    options.device = torch.device("cpu")
    group.barrier(opts=options).wait()


def _gathered(head: Tensor, rank: int, mine: Letter, group: dist.ProcessGroup) -> Arrived:
    """One rank's letter; all ranks take part in fetching what did not fit in its head."""
    fetch = partial(_broadcast, source=rank, group=group)
    if rank != group.rank():
        return collect(head, fetch)
    for piece in mine.pieces[1:]:
        fetch(piece)
    return Arrived(0, bytearray())  # its own object needs no reading


def _broadcast(tensor: Tensor, *, source: int, group: dist.ProcessGroup) -> None:
    dist.broadcast(tensor, group=group, group_src=source)


def _raise_failure(letter: Letter) -> None:
    if letter.failure is not None:
        raise letter.failure


def _name(rank: int, group: dist.ProcessGroup) -> str:
    return f"rank {dist.get_global_rank(group, rank)}"
