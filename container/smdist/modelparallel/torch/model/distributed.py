# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: a `Parallel` with the constructor and the methods of SMP v1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Self

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint import gather_state_dict
from smdist.modelparallel.torch.model.wishes import Wishes
from smdist.modelparallel.torch.parallel import active
from smdist.modelparallel.torch.parallel.loading import PLAN
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.settings import MIB, Settings

Hook = Callable[[nn.Module, Any], Any]


class DistributedModel(Parallel):
    """A model that is cut into stages by its first step; one per script, as in SMP v1.

    What differs here: nothing is traced on a device; the model runs once on tensors without
    numbers, and units are measured where they are. `trace_device="cpu"` estimates their costs
    instead, for models that no device holds.

    The plan follows from what was measured, so two runs of one job may be cut differently where
    ranks are busy with other things. To keep a plan, save it on rank 0 once the model is cut,
    `model.plan.save("plan.json")`, and pass it to later runs, `ModelParallel(plan="plan.json")`.
    With `trace_device="cpu"` costs, and so the plan, are the same in every run.

    Replicas are kept alike by our own all-reduce, or FSDP2 (`sharding=` of the options), not by
    DDP; parameters without a gradient keep none.

    Args:
        module: Any module, on meta too.
        trace_device: "gpu": costs of units are measured where they are, of those on meta
            estimated; "cpu": estimated.
        trace_execution_times: Measure units on meta too. Not with trace_device="cpu".
        overlapping_allreduce: Must be True: gradients are reduced while other stages compute.
        backward_passes_per_step: Steps whose gradients are added up before they are reduced.
        average_grads_across_microbatches: False sums them.
        bucket_cap_mb: Size of the buffers that gradients are reduced in, in MiB.
        trace_memory_usage: Measure units on meta too, as trace_execution_times.
        broadcast_buffers: Replicas take the buffers of the first one before each step.
        find_unused_parameters: Either way those get no gradient and nobody waits for them.
        gradient_as_bucket_view: Must be False.

    Raises:
        OptionError: An argument asks for what is not there; all of them at once. Or there is
            another model.
    """

    def __init__(
        self, module: nn.Module, trace_device: str = "gpu", trace_execution_times: bool = False,
        overlapping_allreduce: bool = True, backward_passes_per_step: int = 1, *,
        average_grads_across_microbatches: bool = True, bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False, broadcast_buffers: bool = True,
        find_unused_parameters: bool = True, gradient_as_bucket_view: bool = False,
    ) -> None:  # fmt: skip
        wishes = Wishes(
            trace_device=trace_device, trace_memory_usage=trace_memory_usage,
            trace_execution_times=trace_execution_times, bucket_cap_mb=bucket_cap_mb,
            overlapping_allreduce=overlapping_allreduce,
            backward_passes_per_step=backward_passes_per_step,
            average_grads_across_microbatches=average_grads_across_microbatches,
            broadcast_buffers=broadcast_buffers, find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip
        raise_all(wishes.faults())
        other = active.model()
        require(
            not isinstance(other, DistributedModel),
            what="there is a DistributedModel already",
            why="a script has one",
            mend="Put both into one module, use smp.parallelize, or delete the first",
        )
        super().__init__(module, _settings(wishes))

    @property
    def partitioned(self) -> bool:
        """Whether it has been cut: from the first step on."""
        return self.is_cut

    def get_module(self) -> nn.Module:
        """The user's model; what other ranks hold has no values once it is cut."""
        return self.module

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Parameters of this rank."""
        return self.parameters(recurse)

    def local_named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, under the model's names."""
        return self.named_parameters(prefix, recurse)

    def local_buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers of this rank."""
        return self.buffers(recurse)

    def local_named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers of this rank, under the model's names."""
        return self.named_buffers(prefix, recurse)

    def local_modules(self) -> Iterator[nn.Module]:
        """Modules of this rank."""
        return self.modules()

    def local_named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules of this rank, under the model's names."""
        return self.named_modules(memo, prefix)

    def local_state_dict(self, **options: Any) -> dict[str, Any]:
        """What is on this rank, marked as a part as SMP marks it, and by which plan."""
        part = {**self.local_values(**options), "_smp_is_partial": True}
        return {**part, PLAN: self.plan.document()} if self.is_cut else part

    def state_dict(self, *, gather_to_rank0: bool = False, **options: Any) -> Any:
        """The whole model's, under its own names.

        Once it is cut this is collective over the ranks of one replica, as in SMP v1: all replicas
        may call it, or that of dp_rank 0 alone. With sharding="optimizer" or "full" each replica
        has a part, and all ranks must call it: where only some do, these wait for the others.

        Args:
            gather_to_rank0: Whether rank 0 of the world alone gets it; it is empty elsewhere then.
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
        """Load the whole model's, or this rank's part; it waits for the cut where it must.

        Args:
            same_partition_load: Whether it is this rank's part, of the same stages. What
                `local_state_dict` gave is known as such without, and before the cut it brings
                the plan that the model is cut by.
        """
        if same_partition_load:
            state_dict = {**state_dict, "_smp_is_partial": True}
        return super().load_state_dict(state_dict, strict)

    def register_post_partition_hook(self, hook: Hook) -> None:
        """Call `hook(model, optimizer)` once the model is cut, before its first step runs.

        As in SMP v1; the optimizer is the last DistributedOptimizer that was made, None without.
        """
        self.when_cut(lambda: hook(self, active.wrapped_optimizer()) and None)

    def cpu(self) -> Self:
        """Move what is on this rank to the CPU."""
        super().cpu()
        return self

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not here: raises what to do instead."""
        raise OptionError(
            "model.join() is not in this release",
            "replicas reduce their gradients together, so each runs as many steps",
            "Give all replicas as many batches: DistributedSampler does, and drop_last=True",
        )

    def register_comm_hook(self, *_: Any, **__: Any) -> NoReturn:
        """Not here: raises what to do instead."""
        raise OptionError(
            "model.register_comm_hook() is not in this release",
            "gradients are averaged as they are",
            "Leave it out; sharding with bf16=True sends less",
        )


def _settings(wishes: Wishes) -> Settings:
    options = session.current().options
    return Settings(
        options=options, sharding=options.sharding, shard_degree=options.shard_degree,
        bf16=options.bf16, seed=options.seed, costs=wishes.costs,
        fusion_bytes=int(wishes.bucket_cap_mb * MIB),
        averages=wishes.average_grads_across_microbatches,
        passes_per_step=wishes.backward_passes_per_step,
        broadcasts_buffers=wishes.broadcast_buffers,
    )  # fmt: skip
