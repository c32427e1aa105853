# SPDX-License-Identifier: Apache-2.0
"""Operations of one rank, from the file operations-rank-N.json that the rank has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import JobError

CAPACITY: Final = 1000  # operations that a rank keeps
_VERSION: Final = 1
_MESSAGES: Final = frozenset({"send", "receive"})
_ITEM_BYTES: Final = {
    "bool": 1, "int8": 1, "uint8": 1, "float16": 2, "bfloat16": 2,
    "int16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation, as one rank has called it.

    Attributes:
        number: Number of the operation, counted over all groups of the rank, from 1.
        group: Number of the group of ranks; 0 has all ranks.
        kind: Collective, such as "all_reduce", or "send" or "receive".
        sequence: Number of the collective in the group, which is the same on all ranks, or of the
            message between two ranks.
        part: Number of the collective within its call, for a call that consists of several.
        dtype: Type of the elements, such as "float32".
        bytes: Length of the buffer, or of one rank's part of it; of an all_to_all a hash of all
            lengths.
        op: Reduction, such as "sum"; None for an operation that reduces nothing.
        root: Rank in the group that sends or receives; None for an operation without one.
        peer: Rank in the group of the other side of a message; None for a collective, and for a
            receive from any rank.
        tag: Tag of a message; None for a collective.
        submitted, started, ended: Times in seconds since 1970; None for what has not happened.
            "Started" means that all ranks that it needs have called it.
        state: "submitted", "started", "ended" or "failed".
    """

    number: int
    group: int
    kind: str
    sequence: int
    part: int = 0
    dtype: str
    bytes: int
    op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    submitted: float
    started: float | None = None
    ended: float | None = None
    state: str

    @property
    def is_collective(self) -> bool:
        """Return whether this is a collective, and not a message."""
        return self.kind not in _MESSAGES

    @property
    def call(self) -> tuple[Any, ...]:
        """Return what must be the same on all ranks."""
        if self.kind == "barrier":
            return (self.kind,)
        return self.kind, self.dtype, self.bytes, self.op, self.root

    @property
    def text(self) -> str:
        """Return the call as text, such as "all_reduce(sum, float32, 1024)".

        The number counts elements, as in the engine's own messages; in a type that is unknown
        here, and for a length that is no multiple of an element, it counts bytes.
        """
        if self.kind == "barrier":
            return "barrier()"
        size = [] if self.kind == "all_to_all" else [self._size]
        root = [] if self.root is None else [f"root {self.root}"]
        peer = [] if self.peer is None else [f"peer {self.peer}"]
        tag = [] if self.tag is None else [f"tag {self.tag}"]
        parts = [*filter(None, [self.op]), self.dtype, *size, *root, *peer, *tag]
        return f"{self.kind}({', '.join(parts)})"

    @property
    def _size(self) -> str:
        elements, rest = divmod(self.bytes, _ITEM_BYTES.get(self.dtype, self.bytes + 1))
        return f"{self.bytes} bytes" if rest else f"{elements}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHistory:
    """The last operations of one rank.

    Attributes:
        rank: The rank's number.
        size: Number of ranks of the job.
        name: Name of the rank in messages, such as "rank 3 on algo-2".
        reason: Why the file was written: "signal", "request" or "failure".
        written_at: Time in seconds since 1970.
        fault: Fault that ended the rank's engine, with the keys "kind", "culprit", "operation" and
            "text"; None if it works.
        groups: Engine ranks of each group's members, by the number of the group.
        operations: The operations, the oldest first.
    """

    rank: int
    size: int
    name: str
    reason: str
    written_at: float
    fault: Mapping[str, Any] | None = None
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()

    @property
    def has_all(self) -> bool:
        """Return whether no operation of the rank is missing, because there were few."""
        return not self.operations or self.operations[0].number == 1

    @property
    def pending(self) -> Operation | None:
        """Return the oldest operation that has not ended; None if all have."""
        return next((each for each in self.operations if each.ended is None), None)

    @property
    def last(self) -> Operation | None:
        """Return the operation that was called last; None if there is none."""
        return self.operations[-1] if self.operations else None


def parse_history(content: bytes, where: str) -> RankHistory:
    """Return the operations in the content of a file; `where` is its name, for the error.

    Raises:
        JobError: The content is not that of such a file, or of a version that is not known.
    """
    try:
        found = json.loads(content.decode("utf-8", errors="replace"))
        if found["version"] != _VERSION:
            raise _unreadable(
                where, f"its version is {found['version']!r}, and {_VERSION} is known"
            )
        return RankHistory(
            rank=int(found["rank"]),
            size=int(found["size"]),
            name=str(found["name"]) or f"rank {found['rank']}",
            reason=str(found["reason"]),
            written_at=float(found["written_at"]),
            fault=None if found["fault"] is None else dict(found["fault"]),
            groups={
                int(group): tuple(int(rank) for rank in ranks)
                for group, ranks in found["groups"].items()
            },
            operations=tuple(_operation(each) for each in found["operations"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(where, f"it is not a rank's history ({error!r})") from error


def _operation(found: Mapping[str, Any]) -> Operation:
    operation = Operation(**found)
    numbers = (operation.number, operation.group, operation.sequence, operation.part)
    if not all(isinstance(each, int) for each in numbers):
        raise ValueError("the numbers of an operation are not integers")
    return operation


def _unreadable(where: str, why: str) -> JobError:
    return JobError(
        f"the file {where} cannot be read",
        why,
        "Use the same release of sagemaker-dist as the job's image, and files that its ranks wrote",
        kind="unreadable",
    )
