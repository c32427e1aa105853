# SPDX-License-Identifier: Apache-2.0
"""Collectives over the ranks of one process set, in the order in which a rank starts them.

A communicator has two groups of the engine. All collectives run in the group `data`. The group
`control` is used only after a call of `data` has failed because ranks called different things,
and while a rank has joined: there, the ranks exchange what each has called.

A rank that joins calls a header in `data`. Ranks that still train call something else under
the same number: that call fails on all ranks, and nothing else does. So a rank that joins is
noticed without a message in the calls before. The failed all-reduce is repeated in `control`, with
zeros of the ranks that have joined, and each later call is announced in `control` first.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist

from smdist.dataparallel.torch import _C
from smdist.dataparallel.torch.horovod.hvd_errors import (
    CallFailed,
    HorovodInternalError,
    HorovodMismatchError,
    engine_errors,
    start_errors,
)
from smdist.dataparallel.torch.two_levels import group_number

_JOIN: Final = "join"
_HEADER: Final = 3  # numbers of a header: the kind, a checksum of the signature, a value
_KINDS: Final = (_JOIN, "allgather", "broadcast", "alltoall", "reducescatter", "adasum", "barrier")

Call = dict[str, Any]  # description of a call: kind, op, dtype, count, device


@dataclass(eq=False)
class Started:
    """An operation of the group `data` that was started and may not have ended.

    Attributes:
        number: Its number among the operations of the group, from 0.
        call: Description for ranks that have joined.
        pack: Function that returns a new buffer with this rank's contribution.
        buffer: The contribution, and then the result.
        work: torch's handle of the operation.
        is_done: True if the result is in `buffer`, or `error` is set.
        error: Error of the operation, raised by each wait() for it.
    """

    number: int
    call: Call
    pack: Callable[[], torch.Tensor] | None
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
        self._data, self._control = (
            self._group(engine, f"{name}/{part}", timeout_seconds) for part in ("data", "control")
        )
        self._started: deque[Started] = deque()
        self._number = 0  # operations of `data` that were started
        self._joined: set[int] = set()  # ranks of this set that have joined
        self._unannounced: list[Call] = []  # calls that some ranks had started before they knew
        self._announced_from = 0  # number of the first operation that is announced
        self._device = torch.device("cpu")  # device of zeros for tensors that are not on the CPU

    def _group(self, engine: Any, name: str, timeout_seconds: float) -> Any:
        number = group_number(name)
        engine.add_group(number, list(self.ranks))
        return _C.make_backend(
            engine, number, self.rank, self.size, timeout_seconds, owns_engine=False
        )

    @property
    def num_started(self) -> int:
        """Number of operations that this rank has started, without those of `control`."""
        return self._number

    # Collectives -------------------------------------------------------------------------------

    def reduce(self, pack: Callable[[], torch.Tensor], op: Any) -> Started:
        """Start an all-reduce of the buffer that `pack` returns; it may be called again."""
        buffer = pack()
        call = _description(buffer, op)
        if self._joined and self._number >= self._announced_from:
            self._announce(call)
        with start_errors():
            work = self._data.allreduce([buffer], _reduce_options(op))
        return self._append(call, buffer, work, pack)

    def header(self, kind: str, signature: str, value: int = 0) -> list[int]:
        """Wait until all ranks have called this with the same signature; return their values.

        Raises:
            HorovodMismatchError: A rank has called something else.
            HorovodInternalError: A rank has joined, which leaves only all-reduces; or a rank was
                lost.
        """
        self.drain()
        if self._joined:
            raise self._only_reductions(kind)
        checksum = group_number(signature)
        mine = torch.tensor([_KINDS.index(kind), checksum, value])
        every = torch.empty(self.size * _HEADER, dtype=torch.int64)
        call = {"kind": kind, "signature": signature}
        self._number += 1
        try:
            with engine_errors():
                self._data._allgather_base(every, mine).wait()
        except CallFailed:
            self._recover(call, None)
            return []
        rows = every.view(self.size, _HEADER).tolist()
        joined = {rank for rank, row in enumerate(rows) if row[0] == 0}
        if joined and kind != _JOIN:
            self._begin_joined(joined, [])
            raise self._only_reductions(kind)
        others = [rank for rank, row in enumerate(rows) if row[:2] != mine.tolist()[:2]]
        if kind == _JOIN:
            self._begin_joined(joined, [])
        elif others:
            calls = tuple({"kind": _KINDS[row[0]], "checksum": row[1]} for row in rows)
            raise self._mismatch(call, others[0], calls)
        return [row[2] for row in rows]

    def gather(self, tensor: torch.Tensor) -> Started:
        """Start an all-gather of equal buffers, after header()."""
        every = tensor.new_empty(self.size * tensor.numel())
        with start_errors():
            work = self._data._allgather_base(every, _flat(tensor))
        return self._append({}, every, work)

    def exchange(
        self, tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> Started:
        """Start an all-to-all of `sent[i]` elements to rank i, after header()."""
        every = tensor.new_empty(sum(received))
        with start_errors():
            work = self._data.alltoall_base(every, _flat(tensor), list(received), list(sent))
        return self._append({}, every, work)

    def send_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> Started:
        """Start an all-gather of buffers of different lengths, after header()."""
        every = tensor.new_empty(sum(counts))
        parts = list(every.split(list(counts)))  # type: ignore[no-untyped-call]
        with start_errors():
            work = self._data.alltoall(parts, [_flat(tensor)] * self.size)
        return self._append({}, every, work)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Started:
        """Start a broadcast of a buffer of rank `root` of this set, after header()."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
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

    # Ranks that join ---------------------------------------------------------------------------

    def join(self, device: torch.device) -> int:
        """Contribute zeros to the all-reduces of the others until all ranks have called this.

        Args:
            device: Device of the zeros for all-reduces of tensors that are not on the CPU.

        Returns:
            The rank that has joined last; the highest of them if several have joined at once.
        """
        self.drain()
        self._device = device
        newest: set[int] = set()
        if self._joined:
            missing = max(self._announced_from - self._number, 0)
            self._contribute(self._unannounced[len(self._unannounced) - missing :])
        else:
            self.header(_JOIN, "")
            newest = set(self._joined)
        while len(self._joined) < self.size:
            answers = self._answers({"joined": True})
            newest = {rank for rank, each in enumerate(answers) if each["joined"]} - self._joined
            self._joined |= newest
            calls = [each["call"] for each in answers if not each["joined"]]
            if calls and all(call == calls[0] for call in calls):
                self._contribute(calls[:1])
        self._joined = set()
        return self.ranks[max(newest)]

    def _contribute(self, calls: Sequence[Call]) -> None:
        """Take part in all-reduces with zeros."""
        for call in calls:
            zeros = _zeros(call, self._device)
            with start_errors():
                work = self._data.allreduce([zeros], _reduce_options(_op_of(call)))
            self._append(call, zeros, work)
        self.drain()

    def _begin_joined(self, joined: set[int], unannounced: list[Call]) -> None:
        self._joined |= joined
        self._unannounced = unannounced
        self._announced_from = self._number + len(unannounced)

    def _announce(self, call: Call) -> None:
        """Send what this rank is about to call to the ranks that have joined, and check it."""
        if call["op"] not in ("SUM", "AVG"):
            raise self._only_reductions(f"allreduce with op {call['op']}")
        self.drain()
        answers = self._answers({"joined": False, "call": call})
        self._joined |= {rank for rank, each in enumerate(answers) if each["joined"]}
        self._check_same(call, answers)

    def _recover(self, call: Call, failed: Started | None) -> None:
        """Find out why a call has failed, and repeat it if a rank has joined.

        Args:
            call: What this rank has called.
            failed: The failed all-reduce; None for a header.

        Raises:
            HorovodMismatchError: No rank has joined.
            HorovodInternalError: A rank has joined, but this rank has called no all-reduce that
                goes on without it.
        """
        is_joining = call["kind"] == _JOIN or self.rank in self._joined
        after = [each.call for each in self._started]
        answers = self._answers({"joined": is_joining, "call": call, "after": after})
        joined = {rank for rank, each in enumerate(answers) if each["joined"]}
        if not joined:
            self._check_same(call, answers)
            raise self._mismatch(call, None, tuple(each["call"] for each in answers))
        longest = max((each["after"] for each in answers), key=len)
        number = self._number - len(after)
        self._joined |= joined
        self._unannounced, self._announced_from = longest, number + len(longest)
        calls = [each["call"] for each in answers if not each["joined"]]
        if any(each["kind"] != "allreduce" or each["op"] not in ("SUM", "AVG") for each in calls):
            if is_joining:
                return self._contribute(longest)
            raise self._only_reductions(call["kind"])
        if not is_joining:
            self._check_same(call, answers)
        elif any(each != calls[0] for each in calls):
            return None
        self._repeat(calls[0], failed)
        if is_joining:
            self._contribute(longest)
        return None

    def _repeat(self, call: Call, failed: Started | None) -> None:
        """Repeat a failed all-reduce in the group `control`; `failed` is None on a joined rank."""
        if failed is not None and failed.pack is not None:
            failed.buffer = failed.pack()
        buffer = _zeros(call, self._device) if failed is None else failed.buffer
        with engine_errors():
            self._control.allreduce([buffer], _reduce_options(_op_of(call))).wait()

    def _answers(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange a dict with all ranks of the set; return theirs, in the order of the ranks."""
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        lengths = torch.empty(self.size, dtype=torch.int64)
        with engine_errors():
            self._control._allgather_base(lengths, torch.tensor([data.numel()])).wait()
            longest = int(lengths.max())
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: data.numel()] = data
            every = torch.empty(longest * self.size, dtype=torch.uint8)
            self._control._allgather_base(every, padded).wait()
        rows = zip(every.view(self.size, -1), lengths.tolist(), strict=True)
        return [json.loads(bytes(row[:length].tolist())) for row, length in rows]

    def _only_reductions(self, kind: str) -> HorovodInternalError:
        ranks = [self.ranks[rank] for rank in sorted(self._joined)]
        return HorovodInternalError(
            f"{kind} was called although rank {ranks[0]} has joined",
            "a rank that has joined takes part only in all-reduces with op Sum or Average",
            "Call it before any rank calls join(), or after all have",
            about=kind,
            kind="joined",
            rank=ranks[0],
        )

    def _check_same(self, call: Call, answers: list[dict[str, Any]]) -> None:
        calls = tuple(each.get("call") for each in answers)
        for rank, each in enumerate(answers):
            if not each["joined"] and each["call"] != call:
                raise self._mismatch(call, rank, calls)

    def _mismatch(
        self, call: Call, other: int | None, calls: tuple[Any, ...]
    ) -> HorovodMismatchError:
        """Return the error of ranks that called different things.

        Args:
            call: What this rank has called.
            other: Number in the set of a rank that has called something else; None if unknown.
            calls: What the ranks have called.
        """
        rank = None if other is None else self.ranks[other]
        what = f"this rank has called {_text(call)}"
        if other is not None:
            what += f", and rank {rank} {_text(calls[other])}"
        return HorovodMismatchError(
            what,
            "all ranks of a process set must call the same collectives in the same order",
            "Give the tensors the same shapes and dtypes on all ranks, and call in the same order",
            about=str(call["kind"]),
            rank=rank,
            calls=calls,
        )

    # Operations --------------------------------------------------------------------------------

    def _append(
        self,
        call: Call,
        buffer: torch.Tensor,
        work: Any,
        pack: Callable[[], torch.Tensor] | None = None,
    ) -> Started:
        started = Started(self._number, call, pack, buffer, work)
        self._number += 1
        self._started.append(started)
        return started

    def _end(self, started: Started) -> None:
        """Wait for the oldest operation, which is no longer in the queue."""
        try:
            try:
                with engine_errors():
                    started.work.wait()
            except CallFailed:
                self._recover(started.call, started)
        except HorovodInternalError as error:
            started.error = error
        started.is_done = True


def _description(buffer: torch.Tensor, op: Any) -> Call:
    return {
        "kind": "allreduce",
        "op": str(op).rpartition(".")[2],
        "dtype": str(buffer.dtype).removeprefix("torch."),
        "count": buffer.numel(),
        "device": buffer.device.type,
    }


def _op_of(call: Call) -> Any:
    return getattr(dist.ReduceOp, call["op"])


def _zeros(call: Call, device: torch.device) -> torch.Tensor:
    place = torch.device("cpu") if call["device"] == "cpu" else device
    return torch.zeros(call["count"], dtype=getattr(torch, call["dtype"]), device=place)


def _reduce_options(op: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous()


def _text(call: Call) -> str:
    return f"{call['kind']}({', '.join(str(v) for k, v in call.items() if k != 'kind')})"
