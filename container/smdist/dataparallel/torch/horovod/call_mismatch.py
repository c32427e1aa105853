# SPDX-License-Identifier: Apache-2.0
"""Descriptions of calls of collectives, and the errors of ranks whose calls differ.

A description is a dict that ranks exchange as JSON. It has the key "kind", and "name" if the
operation has one. An all-reduce adds "op", "dtype", "shapes" and "device". Other calls add
"signature", a text that is the same on all ranks, and "shown", this rank's tensors for errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import torch

from smdist.dataparallel.torch.horovod.hvd_errors import (
    HorovodInternalError,
    HorovodMismatchError,
)

Call = dict[str, Any]

JOIN: Final[Call] = {"kind": "join"}
_MAX_SHAPES: Final = 4  # shapes of one call in an error


def all_reduce_call(
    buffer: torch.Tensor, op: Any, shapes: Sequence[tuple[int, ...]], name: str | None
) -> Call:
    """Return the description of an all-reduce.

    Args:
        buffer: The elements of all tensors.
        op: The reduce operation of torch.
        shapes: Shapes of the tensors.
        name: Name of the operation; None if it has none.
    """
    return {
        "kind": "allreduce",
        **_named(name),
        "op": str(op).rpartition(".")[2],
        "dtype": str(buffer.dtype).removeprefix("torch."),
        "shapes": [*shapes],
        "device": buffer.device.type,
    }


def header_call(kind: str, name: str | None, signature: str, shown: str) -> Call:
    """Return the description of a collective that begins with a header.

    Args:
        kind: Name of the collective.
        name: Name of the operation; None if it has none.
        signature: Text that is the same on all ranks.
        shown: Description of this rank's tensors in errors; "" for the signature.
    """
    return {"kind": kind, **_named(name), "signature": signature, "shown": shown}


def first_different(mine: Call, calls: Sequence[Call]) -> int | None:
    """Return the number of the first rank that has called something else than this rank or join().

    `shown` does not count: it has the numbers of rows, which may differ.

    Args:
        mine: Call of this rank.
        calls: Calls of all ranks, in the order of the ranks.
    """
    own = json.loads(json.dumps({**mine, "shown": ""}))
    others = ((rank, each) for rank, each in enumerate(calls) if each is not JOIN)
    different = (rank for rank, each in others if {**each, "shown": ""} != own)
    return next(different, None)


def mismatch(
    call: Call, rank: int | None, other: Call | None, calls: Sequence[Call]
) -> HorovodMismatchError:
    """Return the error of ranks that called different things.

    Args:
        call: Call of this rank.
        rank: A rank that has called something else; None if unknown.
        other: Call of that rank.
        calls: Calls of all ranks, in the order of the ranks.
    """
    what = f"this rank has called {_text(call)}"
    if other is not None:
        what += f", and rank {rank} {_text(other)}"
    return HorovodMismatchError(
        what,
        "all ranks of a process set must call the same collectives in the same order",
        "Give the tensors the same names, shapes and dtypes on all ranks, and call in the same"
        " order",
        about=str(call["kind"]),
        rank=rank,
        calls=tuple(calls),
    )


def only_reductions(call: Call, joined: int) -> HorovodInternalError:
    """Return the error of a call in which a rank that has joined cannot take part.

    Args:
        call: Call of this rank.
        joined: The rank that has joined.
    """
    op = f" with op {call['op']}" if "op" in call else ""
    return HorovodInternalError(
        f"{call['kind']}{op} was called although rank {joined} has joined",
        "a rank that has joined takes part only in all-reduces with op Sum or Average",
        "Call it before any rank calls join(), or after all have",
        about=str(call["kind"]),
        kind="joined",
        rank=joined,
    )


def _named(name: str | None) -> Call:
    return {} if name is None else {"name": name}


def _text(call: Call) -> str:
    parts = dict(call)
    kind, shown = parts.pop("kind"), parts.pop("shown", "")
    if shown:
        parts["signature"] = shown
    if "shapes" in parts:
        parts["dtype"] = f"{parts['dtype']} {_shapes_text(parts.pop('shapes'))}"
    text = (f"name={v!r}" if k == "name" else str(v) for k, v in parts.items() if v != "")
    return f"{kind}({', '.join(text)})"


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    text = ", ".join(str(tuple(each)) for each in shapes[:_MAX_SHAPES])
    left = len(shapes) - _MAX_SHAPES
    return f"{text} and {left} more" if left > 0 else text
