# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: a `Parallel` with the constructor and the methods of SMP v1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, closest, raise_all, require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint import gather_state_dict
from smdist.modelparallel.torch.parallel.load_state_dict import PLAN
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.settings import MIB, Settings
from smdist.modelparallel.torch.session.current_model import current_model, wrapped_optimizer

_FLAGS = (
    "trace_execution_times", "trace_memory_usage", "overlapping_allreduce", "broadcast_buffers",
    "average_grads_across_microbatches", "find_unused_parameters", "gradient_as_bucket_view",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Arguments of SMP's constructor, by SMP's names."""

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
        """Source of the planner's costs."""
        if self.trace_device == "cpu":
            return "estimate"
        return "measure" if self.trace_execution_times or self.trace_memory_usage else "auto"

    def faults(self) -> Iterator[OptionError]:
        """Yield all faults of the arguments."""
        for name in (each.name for each in fields(self)):
            if name in _FLAGS and not isinstance(getattr(self, name), bool):
                what = f"{name} is {getattr(self, name)!r}"
                yield OptionError(what, "it is a switch", "Pass True or False", about=name)
        yield from self._tracing()
        yield from self._reducing()

    def _tracing(self) -> Iterator[OptionError]:
        if self.trace_device not in ("gpu", "cpu"):
            why = "costs of units are measured, or estimated on the CPU"
            hint = closest(str(self.trace_device), ["gpu", "cpu"])
            yield OptionError(
                f"trace_device is {self.trace_device!r}", why, hint, about="trace_device"
            )
        for name in ("trace_execution_times", "trace_memory_usage"):
            if self.trace_device == "cpu" and getattr(self, name) is True:
                why = "trace_device='cpu' estimates, and this measures"
                yield OptionError(f"{name} is True", why, "Leave one of them out", about=name)

    def _reducing(self) -> Iterator[OptionError]:
        if self.overlapping_allreduce is False:
            why = "gradients of a stage are reduced as soon as they are complete"
            yield OptionError(
                "overlapping_allreduce is False", why, "Leave it out", about="overlapping_allreduce"
            )
        if self.gradient_as_bucket_view is True:
            why = "gradients are copied into buffers as they are sent"
            yield OptionError(
                "gradient_as_bucket_view is True",
                why,
                "Leave it out",
                about="gradient_as_bucket_view",
            )
        passes = self.backward_passes_per_step
        if type(passes) is not int or passes < 1:
            why = "it counts steps between two reductions"
            hint = "Pass an integer of at least 1"
            yield OptionError(
                f"backward_passes_per_step is {passes!r}",
                why,
                hint,
                about="backward_passes_per_step",
            )
        size = self.bucket_cap_mb
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
            why = "it is the size of a buffer in MiB"
            yield OptionError(
                f"bucket_cap_mb is {size!r}", why, "Pass a number above 0", about="bucket_cap_mb"
            )


Hook = Callable[[nn.Module, Any], Any]


class DistributedModel(Parallel):
    """Model that is cut into stages by its first step; one per script, as in SMP v1.

    Unlike in SMP, the model is not traced on a device: it runs once on tensors without numbers, and
    units are measured where they are. `trace_device="cpu"` estimates their costs instead, for
    models that no device holds.

    The plan depends on measurements, so two runs of one job may be cut differently if ranks are
    busy with other work. To keep a plan, save it on rank 0 once the model is cut,
    `model.plan.save("plan.json")`, and pass it to later runs, `ModelParallel(plan="plan.json")`.
    With `trace_device="cpu"` the costs, and so the plan, are the same in every run.

    Replicas are kept equal by our own all-reduce, or by FSDP2 (option `sharding=`), not by DDP; a
    parameter without a gradient on all replicas still has none afterwards.

    Args:
        module: Any module, also on meta.
        trace_device: "gpu" measures units where they are, and estimates those on meta; "cpu"
            estimates all.
        trace_execution_times: True measures units on meta too; not with trace_device="cpu".
        overlapping_allreduce: Must be True: gradients are reduced while other stages compute.
        backward_passes_per_step: Number of steps whose gradients are added up before reduction.
        average_grads_across_microbatches: True averages gradients, False sums them.
        bucket_cap_mb: Size of the buffers in which gradients are reduced, in MiB.
        trace_memory_usage: True measures units on meta too, like trace_execution_times.
        broadcast_buffers: True copies buffers of the first replica to all before each step.
        find_unused_parameters: No effect: unused parameters get no gradient, and no rank waits.
        gradient_as_bucket_view: Must be False.

    Raises:
        OptionError: Arguments are wrong or not supported, all of them at once; or there is another
            DistributedModel.
    """

    def __init__(
        self, module: nn.Module, trace_device: str = "gpu", trace_execution_times: bool = False,
        overlapping_allreduce: bool = True, backward_passes_per_step: int = 1, *,
        average_grads_across_microbatches: bool = True, bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False, broadcast_buffers: bool = True,
        find_unused_parameters: bool = True, gradient_as_bucket_view: bool = False,
    ) -> None:  # fmt: skip
        wishes = ModelOptions(
            trace_device=trace_device, trace_memory_usage=trace_memory_usage,
            trace_execution_times=trace_execution_times, bucket_cap_mb=bucket_cap_mb,
            overlapping_allreduce=overlapping_allreduce,
            backward_passes_per_step=backward_passes_per_step,
            average_grads_across_microbatches=average_grads_across_microbatches,
            broadcast_buffers=broadcast_buffers, find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip
        raise_all(wishes.faults())
        other = current_model()
        require(
            not isinstance(other, DistributedModel),
            what="there is a DistributedModel already",
            why="a script has one",
            hint="Put both into one module, use smp.parallelize, or delete the first",
        )
        super().__init__(module, _settings(wishes))

    @property
    def partitioned(self) -> bool:
        """True once the model is cut, from the first step on."""
        return self.is_cut

    def get_module(self) -> nn.Module:
        """Return the user's model; after the cut, tensors that other ranks hold have no values."""
        return self.module

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the parameters of this rank."""
        return self.parameters(recurse)

    def local_named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters of this rank, with their names in the model."""
        return self.named_parameters(prefix, recurse)

    def local_buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return the buffers of this rank."""
        return self.buffers(recurse)

    def local_named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Return the buffers of this rank, with their names in the model."""
        return self.named_buffers(prefix, recurse)

    def local_modules(self) -> Iterator[nn.Module]:
        """Return the modules of this rank."""
        return self.modules()

    def local_named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return the modules of this rank, with their names in the model."""
        return self.named_modules(memo, prefix)

    def local_state_dict(self, **options: Any) -> dict[str, Any]:
        """Return this rank's values, with SMP's mark of a part and the plan that cut the model."""
        part = {**self.local_values(**options), "_smp_is_partial": True}
        return {**part, PLAN: self.plan.document()} if self.is_cut else part

    def state_dict(self, *, gather_to_rank0: bool = False, **options: Any) -> Any:
        """Return the whole model's state dict, under its own names.

        After the cut this is collective over the ranks of a replica, as in SMP v1: all replicas may
        call it, or the one of dp_rank 0 alone. With sharding="optimizer" or "full" each replica has
        a part, so all ranks must call it; a call on some of them waits for the others.

        Args:
            gather_to_rank0: True if only rank 0 of the world gets the values; others get an empty
                dict.
        """
        if not self.is_cut:
            return self.module.state_dict(**options)
        return gather_state_dict(self, to_rank0=gather_to_rank0)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        same_partition_load: bool = False,
    ) -> Any:
        """Load a state dict of the whole model or of this rank, at the cut if it cannot be earlier.

        Args:
            same_partition_load: True if the values are this rank's part, for the same stages. The
                result of `local_state_dict` is recognized without it; before the cut it brings the
                plan by which the model is cut.
        """
        if same_partition_load:
            state_dict = {**state_dict, "_smp_is_partial": True}
        return super().load_state_dict(state_dict, strict)

    def register_post_partition_hook(self, hook: Hook) -> None:
        """Call `hook(model, optimizer)` once the model is cut, before its first step runs.

        As in SMP v1, the optimizer is the latest DistributedOptimizer, or None.
        """
        self.when_cut(lambda: hook(self, wrapped_optimizer()) and None)

    def cpu(self) -> Self:
        """Move this rank's parameters and buffers to the CPU."""
        super().cpu()
        return self

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the call; the error says what to do instead."""
        raise OptionError(
            "model.join() is not in this release",
            "replicas reduce their gradients together, so each runs as many steps",
            "Give all replicas as many batches: DistributedSampler does, and drop_last=True",
        )

    def register_comm_hook(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the call; the error says what to do instead."""
        raise OptionError(
            "model.register_comm_hook() is not in this release",
            "gradients are averaged as they are",
            "Leave it out; sharding with bf16=True sends less",
        )


def _settings(wishes: ModelOptions) -> Settings:
    options = session.current().options
    return Settings(
        options=options, sharding=options.sharding, shard_degree=options.shard_degree,
        bf16=options.bf16, seed=options.seed, costs=wishes.costs,
        fusion_bytes=int(wishes.bucket_cap_mb * MIB),
        averages=wishes.average_grads_across_microbatches,
        passes_per_step=wishes.backward_passes_per_step,
        broadcasts_buffers=wishes.broadcast_buffers,
    )  # fmt: skip
