# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel with the job's fusion buffers and with progress lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
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
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import EVERY_SECONDS, TrainingProgress

_FIRST: Final = 10  # maximum number of elements examined in each container of inputs
_MOST: Final = 100  # maximum number of inputs examined in total


class DistributedDataParallel(TorchDistributedDataParallel):
    """Average gradients in fusion buffers of the job's size.

    torch's bucket is the fusion buffer: this class sets `bucket_cap_mb` from
    `DataParallel.fusion_bytes` and stores gradients in the buckets
    (`gradient_as_bucket_view`), which saves a copy. During training rank 0 prints
    steps, samples and the time of all-reduces (docs/metrics.md). Everything else, including
    every other argument, is torch's.

    Args:
        module: The model, on the CPU or on a GPU. NCCL reduces gradients on a GPU
            (`init_process_group("cpu:smdist,cuda:nccl")`), and the lines do not show their time.
        fusion_bytes: Bytes per buffer; default the job's value, which is 25 MiB if not set.
        progress_seconds: Time between two progress lines, default 10; infinite: only
            the last line; None: no lines.

    Raises:
        OptionError: Both `fusion_bytes` and `bucket_cap_mb` are given, or
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
        require(
            fusion_bytes is None or "bucket_cap_mb" not in kwargs,
            what=f"fusion_bytes is {fusion_bytes!r} beside bucket_cap_mb",
            why="both set the size of the same buffer",
            hint="Keep fusion_bytes",
        )
        require(
            progress_seconds is None or _is_time(progress_seconds),
            what=f"progress_seconds is {progress_seconds!r}",
            why="it is the time between two lines",
            hint="Pass a number of seconds that is not negative, or None for no lines",
        )
        asked = fusion_bytes or read_rank_config().fusion_bytes
        options = DataParallel(fusion_bytes=asked) if asked else DataParallel()
        self.fusion_bytes = options.fusion_bytes
        kwargs.setdefault("bucket_cap_mb", self.fusion_bytes / MiB)
        kwargs.setdefault("gradient_as_bucket_view", True)
        super().__init__(module, *args, **kwargs)
        self.progress_seconds = progress_seconds
        self._progress, self._has_begun = self._new_progress(), False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied model, which counts its progress from 0."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._progress, self._has_begun = self._new_progress(), False

    # Only this method is excluded from torch.compile, as torch's own forward() is; the functions
    # that it calls are compiled.
    @_disable_dynamo(recursive=False)
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module. A forward pass in training, outside no_sync(), starts a step."""
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
        # the engine does not run the collectives of other devices
        is_timed = self.device_type == "cpu"
        return TrainingProgress(counts=True, is_timed=is_timed, every_seconds=self.progress_seconds)


def _is_time(seconds: Any) -> bool:
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    return is_number and bool(seconds >= 0)  # refuses nan


def _leading(inputs: Iterable[Any]) -> int | None:
    """Return the leading dimension of the first tensor that has one, also inside containers.

    Returns None if the first inputs have no such tensor, or if the dimension is not known.
    The search takes microseconds and raises nothing, whatever classes a script passes.
    """
    with suppress(Exception):
        for each in islice(_parts(inputs), _MOST):
            if isinstance(each, torch.Tensor) and each.dim() > 0:
                return int(each.size(0))  # a nested tensor has no shape and raises
    return None


def _parts(inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield each input, and after a container its first elements."""
    for each in inputs:
        yield each
        if isinstance(each, (list, tuple, Mapping)):
            within = each.values() if isinstance(each, Mapping) else each
            yield from _parts(islice(within, _FIRST))
