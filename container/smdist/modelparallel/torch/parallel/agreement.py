# SPDX-License-Identifier: Apache-2.0
"""Before anything is sent, ranks agree that they go on, and those of a pipeline do the same.

A rank that saw another batch would send what the next one does not expect: somebody waits for
ever, or wrong numbers are trained on. Eight bytes of each rank tell; only where they differ do
the ranks say more. Where gradients are summed, a replica that cannot go on stops all others, so
all of them are asked.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.mail.post import gather
from smdist.modelparallel.torch.parallel.together import (
    BEFORE,
    DisagreementError,
    ending_all,
    in_words,
    raise_first,
)
from smdist.modelparallel.torch.tree import flatten, paths

_FAULT = -1
_SCALARS = (
    bool, int, float, complex, str, bytes, type(None), Enum, np.generic, torch.dtype,
    torch.device, torch.Size,
)  # fmt: skip
_NAMES = {"inputs": "other inputs", "data": "other data", "model": "the model set otherwise"}
_MENDS = {
    "model": "Set the whole model alike on all ranks of a pipeline: model.train(), model.eval(),"
    " and what is frozen on model.module",
    "data": "Give a DistributedSampler num_replicas=smp.dp_size() and rank=smp.dp_rank(), and seed"
    " what is random in data sets by smp.dp_rank()",
}


class DifferenceError(DisagreementError):
    """Ranks of one pipeline are about to do different things; no rank has a fault, all raise."""


def agree(
    groups: Groups, axis: Axis, said: dict[str, str], fault: BaseException | None = None
) -> None:
    """Go on if all ranks of a pipeline say the same and no rank has a fault.

    Args:
        axis: Who is asked: all ranks where they will meet, else this pipeline alone.
        said: What this rank is about to do, by kind; text that is the same in every process.
        fault: Why it cannot.

    Raises:
        DifferenceError: Ranks differ; on every rank that is asked.
        DisagreementError: Another rank has a fault.
        BaseException: The fault itself, on its rank.
    """
    ranks = groups.members(axis)
    if len(ranks) == 1:
        if fault is not None:
            raise fault
        return
    mine = torch.tensor([_FAULT if fault is not None else _digest(said)], dtype=torch.int64)
    every = [torch.empty_like(mine) for _ in ranks]
    with ending_all(groups, BEFORE):
        dist.all_gather(every, mine, group=groups.of(axis))
    digests = {rank: int(each.item()) for rank, each in zip(ranks, every, strict=True)}
    if _FAULT in digests.values() or _differing(groups, digests):
        _say_why(groups, axis, said, fault)


def _differing(groups: Groups, told: dict[int, Any]) -> list[int]:
    """Of the first pipeline whose ranks differ, the first rank and one that differs from it."""
    for pipeline in groups.layout.all_members(Axis.PP):
        for rank in pipeline:
            if rank in told and told[rank] != told[pipeline[0]]:
                return [pipeline[0], rank]
    return []


def described(data: Any) -> str:
    """Shapes and types of nested data, and whatever is no tensor."""
    leaves, form = flatten(data)
    return "; ".join(
        f"{path} {_text(leaf)}" for path, leaf in zip(paths(form), leaves, strict=True)
    )


def checksum(data: Any) -> str:
    """Of all bytes of all tensors and arrays in nested data, by name."""
    leaves, form = flatten(data)
    found = ((path, _bytes(leaf)) for path, leaf in zip(paths(form), leaves, strict=True))
    return "; ".join(
        f"{path} {hashlib.blake2b(each, digest_size=8).hexdigest()}"
        for path, each in found
        if each is not None
    )


def _bytes(leaf: Any) -> Any:
    """What a leaf consists of; None where that is not known."""
    if isinstance(leaf, np.ndarray):
        return None if leaf.dtype.hasobject else np.ascontiguousarray(leaf).reshape(-1).view("u1")
    if not isinstance(leaf, Tensor) or leaf.is_meta or leaf.is_quantized:
        return None
    plain = leaf.detach().to_dense() if leaf.layout is not torch.strided else leaf.detach()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy()


def _text(leaf: Any) -> str:
    if isinstance(leaf, Tensor | np.ndarray):
        return f"{leaf.dtype}{list(leaf.shape)}"
    if isinstance(leaf, set | frozenset):
        return f"{type(leaf).__name__} of {sorted(map(_text, leaf))}"
    return repr(leaf) if isinstance(leaf, _SCALARS) else type(leaf).__name__


def _digest(said: dict[str, str]) -> int:
    text = repr(sorted(said.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _say_why(groups: Groups, axis: Axis, said: dict[str, str], fault: BaseException | None) -> None:
    ranks = groups.members(axis)
    with ending_all(groups, BEFORE):
        answers = gather((said, in_words(fault)), groups.of(axis))
    if fault is not None:
        raise fault
    told = dict(zip(ranks, answers, strict=True))
    raise_first({rank: words for rank, (_, words) in told.items()}, BEFORE)
    plain = {rank: each for rank, (each, _) in told.items()}
    first, other = _differing(groups, plain)
    raise _difference((first, other), plain[first], plain[other])


def _difference(
    ranks: tuple[int, int], first: dict[str, str], other: dict[str, str]
) -> DifferenceError:
    """Of two ranks of one pipeline."""
    kinds = [kind for kind in {**first, **other} if first.get(kind) != other.get(kind)]
    first_kind = next((each for each in ("inputs", "model") if each in kinds), None)
    kinds = kinds if first_kind is None else [first_kind]  # the rest follows from it
    parts = [
        f"they differ in {_arguments(first[kind], other[kind])}"
        if kind == "data" and kind in first and kind in other
        else f"rank {ranks[0]} has {first.get(kind, 'nothing')}, rank {ranks[1]} has"
        f" {other.get(kind, 'nothing')}"
        for kind in kinds
    ]
    what = " and ".join(_NAMES.get(kind, kind) for kind in kinds)
    return DifferenceError(
        f"rank {ranks[1]} of the pipeline has {what} than rank {ranks[0]}",
        "; ".join(["all ranks of one pipeline work on the same batch", *parts]),
        _MENDS["model" if kinds[0] == "model" else "data"],
    )


def _arguments(first: str, other: str) -> str:
    """Those whose checksums differ."""
    pairs = zip(first.split("; "), other.split("; "), strict=False)
    return ", ".join(repr(a.rpartition(" ")[0]) for a, b in pairs if a != b)
