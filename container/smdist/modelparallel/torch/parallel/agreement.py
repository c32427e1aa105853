# SPDX-License-Identifier: Apache-2.0
"""Before anything is sent, the ranks of a pipeline agree that they are about to do the same.

A rank that saw another batch would send what the next one does not expect: somebody waits for
ever, or wrong numbers are trained on. Sixteen bytes of each rank tell; only where they differ do
the ranks say more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.tree import flatten, paths

_FAULT = -1
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_NAMES = {"inputs": "other inputs", "data": "other data", "model": "the model set otherwise"}


class DisagreementError(OptionError):
    """Ranks of one pipeline are about to do different things, or one of them cannot go on."""


def agree(groups: Groups, said: dict[str, str], fault: BaseException | None = None) -> None:
    """Go on if all ranks of the pipeline say the same and none has a fault.

    Args:
        said: What this rank is about to do, by kind; text that is the same in every process.
        fault: Why it cannot.

    Raises:
        DisagreementError: Ranks differ, or another rank has a fault that is no OptionError.
        BaseException: The fault itself, on its rank; an OptionError on all.
    """
    if groups.pp_size == 1:
        if fault is not None:
            raise fault
        return
    group = groups.of(Axis.PP)
    digest = _FAULT if fault is not None else _digest(said)
    mine = torch.tensor([digest], dtype=torch.int64)
    every = [torch.empty_like(mine) for _ in range(groups.pp_size)]
    dist.all_gather(every, mine, group=group)
    if digest == _FAULT or len({each.item() for each in every}) > 1:
        _say_why(groups, said, fault)


def described(data: Any) -> str:
    """Shapes and types of nested data, and whatever is no tensor."""
    leaves, form = flatten(data)
    return "; ".join(
        f"{path} {_text(leaf)}" for path, leaf in zip(paths(form), leaves, strict=True)
    )


def checksum(data: Any) -> str:
    """Of all bits of all tensors in nested data."""
    sums = [_bits(leaf) for leaf in flatten(data)[0] if isinstance(leaf, Tensor)]
    return " ".join(map(str, sums))


def _bits(tensor: Tensor) -> int:
    if tensor.is_meta or not tensor.numel():
        return 0
    plain = tensor.detach().contiguous().reshape(-1)
    if plain.is_complex() or plain.is_floating_point():
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(plain.element_size())
        plain = plain.view(whole or torch.int64)
    return int(plain.sum(dtype=torch.int64).item())


def _text(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, _SCALARS) else type(leaf).__name__


def _digest(said: dict[str, str]) -> int:
    text = repr(sorted(said.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _say_why(groups: Groups, said: dict[str, str], fault: BaseException | None) -> None:
    told: list[Any] = [None] * groups.pp_size
    dist.all_gather_object(told, (said, _portable(fault)), group=groups.of(Axis.PP))
    if fault is not None:
        raise fault
    ranks = groups.members(Axis.PP)
    for rank, (_, other) in zip(ranks, told, strict=True):
        if other is not None:
            raise other if isinstance(other, OptionError) else _failed(rank, other)
    raise _difference(ranks, [each for each, _ in told])


def _portable(fault: BaseException | None) -> OptionError | str | None:
    if fault is None or isinstance(fault, DistError):
        return fault if fault is None or isinstance(fault, OptionError) else str(fault)
    return f"{type(fault).__name__}: {fault}"


def _failed(rank: int, text: str) -> DisagreementError:
    why = f"before it called the model: {text}"
    return DisagreementError(f"rank {rank} failed in this step", why, "See the error of that rank")


def _difference(ranks: Sequence[int], told: list[dict[str, str]]) -> DisagreementError:
    """Of the first rank and the first that differs from it."""
    first = told[0]
    at, other = next((at, each) for at, each in enumerate(told) if each != first)
    kinds = [kind for kind in {**first, **other} if first.get(kind) != other.get(kind)]
    kinds = ["inputs"] if "inputs" in kinds else kinds  # the rest follows from them
    parts = [
        f"rank {ranks[0]} has {first.get(kind, 'nothing')}, rank {ranks[at]} has"
        f" {other.get(kind, 'nothing')}"
        for kind in kinds
        if kind != "data"
    ]
    what = " and ".join(_NAMES.get(kind, kind) for kind in kinds)
    return DisagreementError(
        f"rank {ranks[at]} of the pipeline has {what} than rank {ranks[0]}",
        "; ".join(["all ranks of one pipeline work on the same batch", *parts]),
        "Give a DistributedSampler num_replicas=smp.dp_size() and rank=smp.dp_rank(), and seed"
        " what is random in data sets by smp.dp_rank()",
    )
