# SPDX-License-Identifier: Apache-2.0
"""All-to-alls of rows along dimension 0, with the names and arguments of Horovod.

Before an all-to-all ranks exchange a few numbers: the shapes, and how many rows each rank has.
Functions with "async" return after that exchange, so they wait until all ranks have called them,
unless they have a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from sagemaker_dist.errors import require
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allreduce_calls import gradient_name
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.flat_buffers import (
    check_rows,
    row_elements,
    row_signature,
    shown,
)
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.named_operations import Finish
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)

_INDEX_DTYPES: Final = (torch.int32, torch.int64)


def _row_splits(tensor: torch.Tensor, splits: Any, size: int) -> list[int]:
    """Return the number of rows for each rank.

    Raises:
        OptionError: `splits` does not fit the tensor, or is missing and rows cannot be divided.
    """
    rows = tensor.shape[0]
    if splits is None:
        require(
            rows % size == 0,
            what=f"alltoall() was called with {rows} rows and without splits",
            why=f"they cannot be divided by {size} ranks",
            hint="Pass splits",
            about="splits",
        )
        return [rows // size] * size
    if not isinstance(splits, torch.Tensor):
        splits = torch.tensor(list(splits))
    fits = splits.dtype in _INDEX_DTYPES and splits.dim() == 1 and splits.numel() == size
    numbers: list[int] = splits.tolist() if fits else []
    require(
        fits,
        what=f"splits is {splits}",
        why=f"it has a number of rows for each of {size} ranks",
        hint="Pass a tensor of int32 or int64 with one dimension",
        about="splits",
    )
    require(
        min(numbers) >= 0 and sum(numbers) <= rows,
        what=f"splits is {numbers}, together {sum(numbers)}",
        why=f"the tensor has {rows} rows, and no number of rows is below 0",
        hint=f"Pass numbers from 0 whose sum is at most {rows}",
        about="splits",
        kind="difference",
    )
    return numbers


def _start_exchange(
    tensor: torch.Tensor,
    sent: list[int],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[torch.Tensor, list[int]], Any],
) -> int:
    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        communicator.header("alltoall", row_signature([tensor]), name=name, shown=shown([tensor]))
        ones = [1] * communicator.size
        received = communicator.wait(communicator.exchange(torch.tensor(sent), ones, ones)).tolist()
        row = row_elements(tensor)
        started = communicator.exchange(
            tensor[: sum(sent)], [each * row for each in sent], [each * row for each in received]
        )

        def collect(buffers: list[torch.Tensor]) -> Any:
            return finish(buffers[0].view(sum(received), *tensor.shape[1:]), received)

        return [started], collect

    return handles.start("alltoall", name, process_set, [tensor], begin)


def _with_splits(result: torch.Tensor, received: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return result, torch.tensor(received, dtype=torch.int32)


class _ExchangeFunction(torch.autograd.Function):
    """All-to-all with a gradient: the all-to-all that sends gradients back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, sent: list[int], name: str | None, process_set: ProcessSet
    ) -> Any:
        """Return the received rows, and how many came from each rank."""
        result, received = synchronize(
            _start_exchange(tensor, sent, name, process_set, _with_splits)
        )
        ctx.received, ctx.process_set = received.tolist(), process_set
        ctx.name = gradient_name(name)
        ctx.unsent = tensor.shape[0] - sum(sent)
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        """Return the gradients of this rank's rows; rows that were not sent get zeros."""
        back, _ = synchronize(
            _start_exchange(gradient, ctx.received, ctx.name, ctx.process_set, _with_splits)
        )
        if ctx.unsent:
            back = torch.cat([back, back.new_zeros(ctx.unsent, *back.shape[1:])])
        return back, None, None, None


@after_init
def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the tensor to each rank, and return the received rows; it has a gradient.

    Args:
        tensor: Rows for rank 0, then rows for rank 1, and so on.
        splits: Number of rows for each rank, of int32 or int64; None for equal parts.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Returns:
        The received rows; with `splits` a tuple of them and the number of rows from each rank.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks have different dtypes or shapes of rows; the next call works.
        HorovodInternalError: A rank was lost.
    """
    check_rows([tensor], "alltoall")
    sent = _row_splits(tensor, splits, process_set.size())
    result, received = _ExchangeFunction.apply(  # type: ignore[no-untyped-call]
        tensor, sent, name, process_set
    )
    return result if splits is None else (result, received)


@after_init
def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start alltoall() without a gradient, and return its handle."""
    check_rows([tensor], "alltoall")
    sent = _row_splits(tensor, splits, process_set.size())
    has_splits = splits is not None

    def finish(result: torch.Tensor, received: list[int]) -> Any:
        return _with_splits(result, received) if has_splits else result

    return _start_exchange(tensor, sent, name, process_set, finish)
