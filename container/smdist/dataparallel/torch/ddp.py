# SPDX-License-Identifier: Apache-2.0
"""Subclass of torch's DistributedDataParallel with the job's bucket size and progress lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import signature
from itertools import islice
from numbers import Real
from typing import Any, Final

import torch
from torch import nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from sagemaker_dist.contract import DataParallel, MiB
from sagemaker_dist.errors import require
from smdist.config import read_rank_config
from smdist.dataparallel.bucket_sizes import bucket_sizes
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import EVERY_SECONDS, TrainingProgress, is_timed

_FIRST: Final = 10  # maximum number of elements examined in each container of inputs
_MOST: Final = 100  # maximum number of inputs examined in total
_TORCHS_SIZES: Final = ("bucket_cap_mb", "bucket_cap_mb_list")  # torch's arguments


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's DistributedDataParallel, with smdist's bucket size and with progress lines.

    The size of the gradient buckets is `fusion_bytes`; the first ones are smaller, so that the
    network starts early (bucket_sizes.py), if this version of torch has `bucket_cap_mb_list`. By
    default gradients are stored in the buckets (`gradient_as_bucket_view`). During training rank 0
    prints steps, samples and the time of all-reduces (docs/metrics.md). All other arguments are
    torch's.

    Args:
        module: The model, on the CPU or on a GPU. If NCCL averages the gradients of a GPU, the
            progress lines do not show the time of all-reduces.
        fusion_bytes: Bytes per bucket; by default `DataParallel.fusion_bytes` of the job, which
            is 25 MiB if not set.
        progress_seconds: Seconds between two progress lines, by default 10; infinity prints
            only the last line, None prints none.

    Raises:
        OptionError: Both `fusion_bytes` and `bucket_cap_mb` or `bucket_cap_mb_list` are given, or
            `fusion_bytes` or `progress_seconds` is out of range.
    """

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        fusion_bytes: int | None = None,
        progress_seconds: float | None = EVERY_SECONDS,
        **kwargs: Any,
    ) -> None:
        given = signature(TorchDistributedDataParallel).bind_partial(module, *args, **kwargs)
        torchs = [name for name in _TORCHS_SIZES if name in given.arguments]
        require(
            fusion_bytes is None or not torchs,
            what=f"both fusion_bytes={fusion_bytes!r} and {' and '.join(torchs)} were passed",
            why="both set the size of the same buckets",
            hint="Pass only fusion_bytes",
            about="fusion_bytes",
            kind="conflict",
        )
        require(
            progress_seconds is None or _is_time(progress_seconds),
            what=f"progress_seconds is {progress_seconds!r}",
            why="it must be the number of seconds between two progress lines",
            hint="Pass a number that is not negative, or None for no lines",
            about="progress_seconds",
        )
        chosen = fusion_bytes or read_rank_config().fusion_bytes
        options = DataParallel(fusion_bytes=chosen) if chosen else DataParallel()
        self.fusion_bytes = options.fusion_bytes
        if not torchs:
            kwargs |= _torchs_size(self.fusion_bytes)
        kwargs.setdefault("gradient_as_bucket_view", True)
        super().__init__(module, *args, **kwargs)
        self.progress_seconds = progress_seconds
        self._progress, self._has_begun = self._new_progress(), False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied model; its progress lines count steps from 0 again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._progress, self._has_begun = self._new_progress(), False

    # recursive=False: torch.compile leaves out this method alone, as it does torch's own
    # forward(), and compiles the functions that it calls
    @_disable_dynamo(recursive=False)
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module's forward pass and return its result.

        The progress lines count a step for each pass in training mode with gradients, but not
        within no_sync().
        """
        if self._progress is not None and self.training and torch.is_grad_enabled():
            self._count(self._progress, (*inputs, *kwargs.values()))
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]  # torch's

    @_disable_dynamo
    def _count(self, progress: TrainingProgress, inputs: tuple[Any, ...]) -> None:
        if not self._has_begun:
            self._has_begun = True
            step_report.enter(progress)
        if progress.is_current:
            rows = _leading(inputs)
            samples = None if rows is None else rows * self.process_group.size()
            progress.forward(samples, is_step=self.require_backward_grad_sync)

    def _new_progress(self) -> TrainingProgress | None:
        if self.progress_seconds is None:
            return None
        timed = is_timed(torch.device(self.device_type), self.process_group)
        return TrainingProgress(counts=True, is_timed=timed, every_seconds=self.progress_seconds)


def _torchs_size(fusion_bytes: int) -> dict[str, Any]:
    """Return torch's argument for buckets of at most `fusion_bytes` bytes."""
    takes_sizes = "bucket_cap_mb_list" in signature(TorchDistributedDataParallel).parameters
    # torch's reducer in Python has one size for all buckets
    if takes_sizes and torch._dynamo.utils.get_optimize_ddp_mode() != "python_reducer":
        return {"bucket_cap_mb_list": [size / MiB for size in bucket_sizes(fusion_bytes)]}
    return {"bucket_cap_mb": fusion_bytes / MiB}


def _is_time(seconds: Any) -> bool:
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    return is_number and bool(seconds >= 0)  # refuses nan


def _leading(inputs: Iterable[Any]) -> int | None:
    """Return the size of dimension 0 of the first tensor in `inputs`, usually the batch size.

    The search includes lists, tuples and mappings in `inputs`, but only their first elements, so
    that it takes only microseconds. It raises no error for any class of inputs. Return None if it
    finds no tensor that has dimensions, or if the tensor's size is not known.
    """
    with suppress(Exception):
        for each in islice(_parts(inputs), _MOST):
            if isinstance(each, torch.Tensor) and each.dim() > 0:
                return int(each.size(0))  # a nested tensor has no shape and raises
    return None


def _parts(inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield each input, and recursively the first 10 elements of each list, tuple or mapping."""
    for each in inputs:
        yield each
        if isinstance(each, (list, tuple, Mapping)):
            within = each.values() if isinstance(each, Mapping) else each
            yield from _parts(islice(within, _FIRST))
