# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks: before anything is sent, all can go on, and a pipeline's ranks do the same.

A rank that saw another batch would send data that the next one does not expect: one of them would
wait forever, or the model would train on wrong numbers. Each rank therefore sends eight bytes, a
digest of what it is about to do; only if digests differ do ranks exchange details. In a training
step a rank that cannot go on would stop all replicas, so all ranks of the world take part.

In the first step a fault of one rank becomes a fault of all, so that none waits for a rank that has
stopped. Work that each rank does by itself is followed by a short exchange over the world
(`raise_together`). Collective work cannot be: there the engine carries the reason to the ranks that
wait (`ending_all`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.executor.failure_broadcast import Alarm
from smdist.modelparallel.torch.program.pytree import flatten, paths
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_groups import Groups

BEFORE: Final = "the step, before the model's call"


class DisagreementError(OptionError):
    """Ranks are about to do different things, or one of them cannot go on."""


@contextmanager
def raise_together(doing: str) -> Iterator[None]:
    """Run the block on all ranks of the world; raise on all if it has failed on one.

    Args:
        doing: Work that each rank does by itself in the block: "the capture of the model".

    Raises:
        BaseException: The fault of this rank, or an error that names the rank with the fault.
    """
    fault: BaseException | None = None
    try:
        yield
    except BaseException as error:  # any error, since other ranks wait for this one
        fault = error
    faults = all_gather_object(in_words(fault), session.current().world)
    if fault is not None:
        raise fault
    raise_first(dict(enumerate(faults)), doing)


@contextmanager
def ending_all(groups: Groups, doing: str) -> Iterator[None]:
    """End the work of all ranks if the block, which is collective, raises on one.

    Raises:
        BaseException: The fault of this rank; on other ranks a StepError that names it.
    """
    try:
        yield
    except BaseException as error:
        if session.current().size == 1:
            raise
        told = Alarm(groups.of(Axis.PP)).error(error, doing, "the model")
        if told.rank == groups.rank:
            raise
        raise told from error


def in_words(fault: BaseException | None) -> str:
    """Return a fault as text for other ranks; "" for none."""
    if fault is None or isinstance(fault, DistError):
        return "" if fault is None else str(fault)
    text = str(fault).strip()
    return f"{type(fault).__name__}: {text}" if text else type(fault).__name__


def raise_first(faults: Mapping[int, str], doing: str) -> None:
    """Raise an error for the first rank that has a fault, if any.

    Args:
        faults: Faults as text, by rank of the world.

    Raises:
        DisagreementError: A rank has a fault; the error names the rank and the fault.
    """
    for rank, fault in faults.items():
        if fault:
            what, hint = f"rank {rank} failed in {doing}", "See the error of that rank"
            raise DisagreementError(what, fault.rstrip("."), hint)


_FAULT = -1
_SCALARS = (
    bool, int, float, complex, str, bytes, type(None), Enum, np.generic, torch.dtype,
    torch.device, torch.Size,
)  # fmt: skip
_NAMES = {"inputs": "other inputs", "data": "other data", "model": "the model set otherwise"}
_HINTS = {
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
    """Return if all ranks of a pipeline say the same and no rank has a fault; otherwise raise.

    Args:
        axis: Ranks that take part: the world if all will reduce gradients, else this pipeline.
        said: Descriptions of what this rank is about to do, by kind; equal text in every process.
        fault: Error that keeps this rank from going on.

    Raises:
        DifferenceError: Ranks differ; raised on every rank that takes part.
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
    """Return the first rank of a pipeline, and one of its ranks that differs; [] if none differ."""
    for pipeline in groups.layout.all_members(Axis.PP):
        for rank in pipeline:
            if rank in told and told[rank] != told[pipeline[0]]:
                return [pipeline[0], rank]
    return []


def described(data: Any) -> str:
    """Describe nested data: shapes and types of tensors, and other leaves."""
    leaves, form = flatten(data)
    return "; ".join(
        f"{path} {_text(leaf)}" for path, leaf in zip(paths(form), leaves, strict=True)
    )


def checksum(data: Any) -> str:
    """Return checksums of all tensors and arrays in nested data, with their paths."""
    leaves, form = flatten(data)
    found = ((path, _bytes(leaf)) for path, leaf in zip(paths(form), leaves, strict=True))
    return "; ".join(
        f"{path} {hashlib.blake2b(each, digest_size=8).hexdigest()}"
        for path, each in found
        if each is not None
    )


def _bytes(leaf: Any) -> Any:
    """Return the bytes of a tensor or array; None if they are unknown."""
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
        answers = all_gather_object((said, in_words(fault)), groups.of(axis))
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
    """Return the error for two ranks of one pipeline that differ."""
    kinds = [kind for kind in {**first, **other} if first.get(kind) != other.get(kind)]
    first_kind = next((each for each in ("inputs", "model") if each in kinds), None)
    kinds = kinds if first_kind is None else [first_kind]  # other differences are its consequences
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
        _HINTS["model" if kinds[0] == "model" else "data"],
    )


def _arguments(first: str, other: str) -> str:
    """Return the arguments whose checksums differ."""
    pairs = zip(first.split("; "), other.split("; "), strict=False)
    return ", ".join(repr(a.rpartition(" ")[0]) for a, b in pairs if a != b)
