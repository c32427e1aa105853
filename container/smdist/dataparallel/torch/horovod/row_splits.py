# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows that alltoall() sends to each rank."""

from __future__ import annotations

from typing import Any, Final

import torch

from sagemaker_dist.errors import require

_INDEX_DTYPES: Final = (torch.int32, torch.int64)


def row_splits(tensor: torch.Tensor, splits: Any, size: int) -> list[int]:
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
