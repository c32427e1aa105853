# SPDX-License-Identifier: Apache-2.0
"""Copies of a model whose layers are split over ranks that are not there, to plan with.

A split is proved for the smallest number of ranks alone, which takes most of the time. It is
carried over to larger numbers that divide the same sections and numbers of heads, if the split
model still runs. The job proves the split again, for its own number of ranks, before its first
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout.from_graph import BorderMessages
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.torch.materialization.skeleton import skeleton
from smdist.modelparallel.torch.measure.memory_estimate import free_bytes
from smdist.modelparallel.torch.session.rank_team import error_text
from smdist.modelparallel.torch.tensor_parallel.attention_hypotheses import whole_attention
from smdist.modelparallel.torch.tensor_parallel.border_messages import border_messages
from smdist.modelparallel.torch.tensor_parallel.data_flow import on_fake_arguments
from smdist.modelparallel.torch.tensor_parallel.prepare import find
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import Attribute, Region, TensorPlan

_PROOF_BYTES = 64  # for each parameter element of a block: float64 values and gradients, four times


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCopy:
    """Copy of a model, on the meta device, as one rank has it.

    Attributes:
        model: The copy.
        plan: Plan by which its layers are split.
        messages: All-reduces of its modules.
    """

    model: nn.Module
    plan: TensorPlan
    messages: Mapping[str, BorderMessages]


class AbsentPeers:
    """Ranks that are not there, as `Peers`: results of collectives have the right shapes.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def rank(self) -> int:
        """Number of this rank, 0."""
        return 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor once for each rank."""
        return [tensor] * self._size

    def reduce_scatter(self, tensors: list[Tensor]) -> Tensor:
        """Return the tensor of rank 0."""
        return tensors[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> AbsentPeers:
        """Return this object: copies of a model have the same peers."""
        return self


def split_copies(
    model: nn.Module, arguments: tuple[Any, Any], samples: int, degrees: Iterable[int]
) -> tuple[dict[int, SplitCopy], str]:
    """Return copies of a model that are split over numbers of ranks.

    Args:
        model: The whole model, also on the meta device; it stays unchanged.
        arguments: Positional and keyword arguments of a call with few samples.
        samples: Number of these samples.
        degrees: Numbers of ranks, all above 1.

    Returns:
        Copies by the number of ranks, and the reason why there are none; "" if there are some.
    """
    numbers = sorted(degrees)
    if not numbers:
        return {}, ""
    needed, free = _PROOF_BYTES * _largest_block(model), free_bytes(model)
    if free is not None and needed > free:
        why = f"the proof of a split takes {size(needed)}, and {size(free)} are free here"
        return {}, why
    try:
        proved = find(model, arguments, numbers[0])
    except OptionError as error:
        return {}, error.why
    except Exception as error:  # the model may raise any error; it is planned with whole layers
        return {}, f"the search for splits failed ({error_text(error)})"
    copies = {}
    for plan in _carried(model, proved, numbers):
        copy = skeleton(model)
        split_model(copy, plan, AbsentPeers(plan.degree))
        if _runs(copy, arguments):
            messages = border_messages(model, plan, arguments, samples)
            copies[plan.degree] = SplitCopy(model=copy, plan=plan, messages=messages)
    return copies, "" if copies else "no split model runs on tensors without values"


def _runs(copy: nn.Module, arguments: tuple[Any, Any]) -> bool:
    """Return True if the forward pass of a split model runs on tensors without values."""
    try:
        with on_fake_arguments(copy, arguments) as (args, kwargs):
            copy(*args, **kwargs)
    except Exception:  # the model may raise any error for parts of this size
        return False
    return True


def _largest_block(model: nn.Module) -> int:
    """Return the parameter elements of the largest module of a list, or of a single layer."""
    blocks = [
        child for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)
        for child in each
    ]  # fmt: skip
    layers = [each for each in model.modules() if not any(True for _ in each.children())]
    return max(
        (sum(p.numel() for p in each.parameters()) for each in [*blocks, *layers]), default=0
    )


def _carried(model: nn.Module, proved: TensorPlan, degrees: Iterable[int]) -> Iterator[TensorPlan]:
    """Yield a proved plan for each number of ranks that divides some of its regions."""
    for degree in degrees:
        regions = tuple(
            made
            for each in proved.regions
            if not _has_whole_attention(model, each, degree)
            and (made := _region_on(each, proved.degree, degree))
        )
        if regions:
            yield replace(proved, degree=degree, regions=regions)


def _has_whole_attention(model: nn.Module, region: Region, degree: int) -> bool:
    """Return True if attention of torch in a region has heads that a degree does not divide."""
    modules = (model.get_submodule(each.name) for each in region.modules)
    found = (each for each in modules if isinstance(each, nn.MultiheadAttention))
    return any(
        whole_attention(each, degree, on_accelerator=False) is not None  # proved with its dropout
        for each in found
    )


def _region_on(region: Region, proved: int, degree: int) -> Region | None:
    """Return a region for another number of ranks; None if this does not divide its numbers."""
    attributes = [_attribute_on(each, proved, degree) for each in region.attributes]
    lengths = (length for each in region.modules for length in each.sections)
    if None in attributes or any(length % degree for length in lengths):
        return None
    return replace(region, attributes=tuple(filter(None, attributes)))


def _attribute_on(each: Attribute, proved: int, degree: int) -> Attribute | None:
    is_one = isinstance(each.whole, int)
    wholes = (each.whole,) if isinstance(each.whole, int) else each.whole
    parts = (each.part,) if isinstance(each.part, int) else each.part
    found = []
    for whole, part in zip(wholes, parts, strict=True):
        if part == whole:
            found.append(whole)
        elif part * proved == whole and whole % degree == 0:
            found.append(whole // degree)
        else:
            return None
    return replace(each, part=found[0] if is_one else tuple(found))
