# SPDX-License-Identifier: Apache-2.0
"""What the constructor of SMP's DistributedModel is asked, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sagemaker_dist.errors import OptionError, closest

_FLAGS = (
    "trace_execution_times", "trace_memory_usage", "overlapping_allreduce", "broadcast_buffers",
    "average_grads_across_microbatches", "find_unused_parameters", "gradient_as_bucket_view",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The arguments by SMP's names."""

    trace_device: str
    trace_execution_times: bool
    overlapping_allreduce: bool
    backward_passes_per_step: int
    average_grads_across_microbatches: bool
    bucket_cap_mb: float
    trace_memory_usage: bool
    broadcast_buffers: bool
    find_unused_parameters: bool
    gradient_as_bucket_view: bool

    @property
    def costs(self) -> str:
        """Where the planner's costs come from."""
        if self.trace_device == "cpu":
            return "estimate"
        return "measure" if self.trace_execution_times or self.trace_memory_usage else "auto"

    def faults(self) -> Iterator[OptionError]:
        """All that is wrong."""
        for name in (each.name for each in fields(self)):
            if name in _FLAGS and not isinstance(getattr(self, name), bool):
                what = f"{name} is {getattr(self, name)!r}"
                yield OptionError(what, "it is a switch", "Pass True or False")
        yield from self._tracing()
        yield from self._reducing()

    def _tracing(self) -> Iterator[OptionError]:
        if self.trace_device not in ("gpu", "cpu"):
            why = "costs of units are measured, or estimated on the CPU"
            mend = closest(str(self.trace_device), ["gpu", "cpu"])
            yield OptionError(f"trace_device is {self.trace_device!r}", why, mend)
        for name in ("trace_execution_times", "trace_memory_usage"):
            if self.trace_device == "cpu" and getattr(self, name) is True:
                why = "trace_device='cpu' estimates, and this measures"
                yield OptionError(f"{name} is True", why, "Leave one of them out")

    def _reducing(self) -> Iterator[OptionError]:
        if self.overlapping_allreduce is False:
            why = "gradients of a stage are reduced as soon as they are complete"
            yield OptionError("overlapping_allreduce is False", why, "Leave it out")
        if self.gradient_as_bucket_view is True:
            why = "gradients are copied into buffers as they are sent"
            yield OptionError("gradient_as_bucket_view is True", why, "Leave it out")
        passes = self.backward_passes_per_step
        if type(passes) is not int or passes < 1:
            why = "it counts steps between two reductions"
            mend = "Pass an integer of at least 1"
            yield OptionError(f"backward_passes_per_step is {passes!r}", why, mend)
        size = self.bucket_cap_mb
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
            why = "it is the size of a buffer in MiB"
            yield OptionError(f"bucket_cap_mb is {size!r}", why, "Pass a number above 0")
