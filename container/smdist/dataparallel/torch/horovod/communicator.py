# SPDX-License-Identifier: Apache-2.0
"""Collectives over the ranks of one process set, in the order in which a rank starts them.

A communicator has three groups of the engine. All collectives run in the group `data`. The group
`control` is used only after a call of `data` has failed because ranks called different things:
there, the ranks exchange what each has called. In the group `joining`, ranks tell that they have
joined (join_ranks.py); the engine of such a rank answers the all-reduces of the others in `data`
and `control`.

Operations that carry a name run in a communicator of their own (named_operations.py).
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist

from smdist.dataparallel.horovod_timeline import hide_group, name_operation
from smdist.dataparallel.join_ranks import join_ranks, joined_rank
from smdist.dataparallel.rendezvous.engine_interface import EngineFault
from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.horovod.call_mismatch import (
    JOIN,
    Call,
    all_reduce_call,
    first_different,
    header_call,
    mismatch,
    only_reductions,
)
from smdist.dataparallel.torch.horovod.hvd_errors import (
    CallFailed,
    HorovodInternalError,
    HorovodMismatchError,
    start_errors,
    wait_for,
)
from smdist.dataparallel.torch.horovod.named_operations import NamedOperations
from smdist.dataparallel.torch.two_levels import group_number

_HEADER: Final = 3  # numbers of a header: the kind, a checksum of the signature, a value
_LAYOUT: Final = (1 << 64) - 1  # largest hash that ranks compare
_KINDS: Final = ("allgather", "broadcast", "alltoall", "reducescatter", "adasum", "barrier")


@dataclass(eq=False)
class Started:
    """An operation of the group `data` that was started and may not have ended.

    Attributes:
        number: Its number among the operations of the group, from 0.
        call: Description for ranks that have called something else.
        buffer: The contribution, and then the result.
        work: torch's handle of the operation.
        is_done: True if the result is in `buffer`, or `error` is set.
        error: Error of the operation, raised by each wait() for it.
    """

    number: int
    call: Call
    buffer: torch.Tensor
    work: Any
    is_done: bool = False
    error: Exception | None = field(default=None, repr=False)


class Communicator:
    """Collectives of the ranks of one process set.

    Args:
        engine: The connected engine.
        name: Name of the process set, the same on its ranks, and never used before.
        ranks: The ranks of the process set.
        rank: This rank's number in the job.
        timeout_seconds: Seconds that an operation waits for a peer.
    """

    def __init__(
        self, engine: Any, name: str, ranks: Sequence[int], rank: int, timeout_seconds: float
    ) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(rank)
        self._engine, self._name, self._timeout_seconds = engine, name, timeout_seconds
        # the engine answers both after join()
        self._answered_groups = [self._group(part) for part in ("data", "control")]
        self._data, self._control = map(self._backend, self._answered_groups)
        self._data_group = self._answered_groups[0]
        self._started: deque[Started] = deque()
        self._number = 0  # operations of `data` that were started
        self._named: NamedOperations | None = None
        self._lock = threading.Lock()
        self._answered = 0  # operations of `data` that the engine answered after join()
        self._shown = "", ""  # kind and name in timelines of the call that header() has begun

    def _group(self, part: str) -> int:
        number = group_number(f"{self._name}/{part}")
        self._engine.add_group(number, list(self.ranks))
        return number

    def _backend(self, number: int) -> Any:
        return _C.make_backend(
            self._engine, number, self.rank, self.size, self._timeout_seconds, owns_engine=False
        )

    @property
    def num_started(self) -> int:
        """Number of operations that this rank has started, without those of `control`."""
        return self._number

    # Collectives -------------------------------------------------------------------------------

    def reduce(
        self, buffer: torch.Tensor, op: Any, shapes: Sequence[tuple[int, ...]],
        name: str | None = None, shown: str | None = None,
    ) -> Started:  # fmt: skip
        """Start an all-reduce of a flat buffer, which becomes the result.

        Args:
            buffer: The elements of all tensors.
            op: The reduce operation of torch.
            shapes: Shapes of the tensors, which are the same on all ranks.
            name: Name of the operation; None if it has none.
            shown: Name in timelines of an operation without a name.
        """
        call = all_reduce_call(buffer, op, shapes, name)
        self._shown = "allreduce", name or shown or f"noname.{self._number + 1}"
        self._show()
        layout = hash(tuple(shapes)) & _LAYOUT
        with start_errors():
            work = _C.allreduce_of_layout(self._data, buffer, _reduce_options(op), layout)
        return self._append(call, buffer, work)

    def header(
        self, kind: str, signature: str, value: int = 0, *, name: str | None = None, shown: str = ""
    ) -> list[int]:
        """Wait until all ranks have called this with the same signature; return their values.

        Args:
            kind: Name of the collective.
            signature: Text that is the same on all ranks.
            value: A number of this rank.
            name: Name of the operation, which is the same on all ranks; None if it has none.
            shown: Description of this rank's tensors in errors; "" for the signature.

        Raises:
            HorovodMismatchError: A rank has called something else.
            HorovodInternalError: A rank has joined, which leaves only all-reduces; or a rank was
                lost.
        """
        self.drain()
        call = header_call(kind, name, signature, shown)
        checksum = group_number(f"{signature} {name!r}")
        mine = torch.tensor([_KINDS.index(kind), checksum, value])
        self._shown = kind, name or f"noname.{self._number + 1}"
        self._show("/negotiate")
        every = torch.empty(self.size * _HEADER, dtype=torch.int64)
        self._number += 1
        try:
            wait_for(self._data._allgather_base(every, mine))
        except CallFailed as failed:
            raise self._failure(call, failed.fault) from None
        rows = every.view(self.size, _HEADER).tolist()
        others = [rank for rank, row in enumerate(rows) if row[:2] != mine.tolist()[:2]]
        if others:
            raise self._mismatch(call, others[0], self._answers(call))
        return [row[2] for row in rows]

    def gather(self, tensor: torch.Tensor) -> Started:
        """Start an all-gather of equal buffers, after header()."""
        every = tensor.new_empty(self.size * tensor.numel())
        self._show()
        with start_errors():
            work = self._data._allgather_base(every, _flat(tensor))
        return self._append({}, every, work)

    def exchange(
        self, tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> Started:
        """Start an all-to-all of `sent[i]` elements to rank i, after header()."""
        every = tensor.new_empty(sum(received))
        self._show()
        with start_errors():
            work = self._data.alltoall_base(every, _flat(tensor), list(received), list(sent))
        return self._append({}, every, work)

    def send_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> Started:
        """Start an all-gather of buffers of different lengths, after header()."""
        every = tensor.new_empty(sum(counts))
        parts = list(every.split(list(counts)))  # type: ignore[no-untyped-call]
        self._show()
        with start_errors():
            work = self._data.alltoall(parts, [_flat(tensor)] * self.size)
        return self._append({}, every, work)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Started:
        """Start a broadcast of a buffer of rank `root` of this set, after header()."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._show()
        with start_errors():
            work = self._data.broadcast([buffer], options)
        return self._append({}, buffer, work)

    def wait(self, started: Started) -> torch.Tensor:
        """Wait until an operation, and each that was started before it, has ended.

        Raises:
            HorovodMismatchError: Ranks called different things.
            HorovodInternalError: A rank was lost.
        """
        while not started.is_done:
            self._end(self._started.popleft())
        if started.error is not None:
            raise started.error
        return started.buffer

    def drain(self) -> None:
        """Wait until all operations that were started have ended; their errors stay in them."""
        while self._started:
            self._end(self._started.popleft())

    # Operations with names ---------------------------------------------------------------------

    def named(self) -> NamedOperations:
        """Return the operations of these ranks that carry names; any thread may call it."""
        with self._lock:
            if self._named is None:
                names = self._group("names")
                hide_group(names)
                starts = _C.NamedStarts(
                    self._engine, names, list(self.ranks), self.rank, self._timeout_seconds
                )
                rank = self.ranks[self.rank]
                communicator = Communicator(
                    self._engine, f"{self._name}/named", self.ranks, rank, self._timeout_seconds
                )
                self._named = NamedOperations(starts, communicator)
            return self._named

    def close(self) -> None:
        """End the thread of named operations."""
        if self._named is not None:
            self._named.close()

    # Ranks that join, and calls that differ ------------------------------------------------------

    def join(self) -> int:
        """Contribute zeros to the all-reduces of the others until all ranks have called this.

        Returns:
            The rank that has joined last: the one that has started the most collectives, and of
            several the highest.
        """
        self.drain()
        if self.size == 1:
            return self.ranks[0]
        named: Communicator = self.named().join()
        groups = [each for part in (self, named) for each in part._answered_groups]
        joining = self._group("joining")
        with start_errors():
            last = join_ranks(_C, self._engine, groups, joining, self._timeout_seconds)
        for each in (self, named):
            each._count_answers()
        return self.ranks[last]

    def _count_answers(self) -> None:
        """Count the operations of the group `data` in which the engine has replaced this rank."""
        operations = json.loads(self._engine.history("join"))["operations"]
        numbers = [each["sequence"] for each in operations if each["group"] == self._data_group]
        if numbers:
            self._answered = max(numbers) + 1 - self._number

    def _failure(self, call: Call, fault: EngineFault | None) -> HorovodInternalError:
        """Return the error of a call that has failed because ranks called different things.

        Args:
            call: What this rank has called.
            fault: The engine's fault of the call.
        """
        joined = joined_rank(fault)
        if joined is not None:
            return only_reductions(call, joined)
        answers = self._answers(call)
        return self._mismatch(call, first_different(call, answers), answers)

    def _mismatch(
        self, call: Call, other: int | None, calls: Sequence[Call]
    ) -> HorovodMismatchError:
        rank = None if other is None else self.ranks[other]
        return mismatch(call, rank, None if other is None else calls[other], calls)

    def _answers(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange calls with all ranks of the set; return theirs, in the order of the ranks.

        Each rank adds its call to zeros, since a rank that has joined takes part in sums alone.
        """
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = data.numel()
        total = _reduce_options(dist.ReduceOp.SUM)
        wait_for(self._control.allreduce([lengths], total))
        every = torch.zeros(self.size, int(lengths.max()), dtype=torch.uint8)
        every[self.rank, : data.numel()] = data
        wait_for(self._control.allreduce([every], total))
        rows = zip(every, lengths.tolist(), strict=True)
        texts = (bytes(row[:length].tolist()) for row, length in rows)
        return [json.loads(text) if text else JOIN for text in texts]

    # Operations --------------------------------------------------------------------------------

    def _show(self, suffix: str = "") -> None:
        """Let timelines show the operation that is submitted next by the name of the call."""
        kind, name = self._shown
        sequence = self._number + self._answered
        name_operation(self._data_group, sequence, kind, name + suffix)

    def _append(
        self,
        call: Call,
        buffer: torch.Tensor,
        work: Any,
    ) -> Started:
        started = Started(self._number, call, buffer, work)
        self._number += 1
        self._started.append(started)
        return started

    def _end(self, started: Started) -> None:
        """Wait for the oldest operation, which is no longer in the queue."""
        try:
            wait_for(started.work)
        except CallFailed as failed:
            started.error = self._failure(started.call, failed.fault)
        except HorovodInternalError as error:
            started.error = error
        started.is_done = True


def _reduce_options(op: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous()
