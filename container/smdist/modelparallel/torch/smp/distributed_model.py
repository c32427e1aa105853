# SPDX-License-Identifier: Apache-2.0
"""Class `smp.DistributedModel`: a split model with the constructor and the methods of SMP v1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint import gather_state_dict
from smdist.modelparallel.torch.parallel.load_state_dict import PLAN
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.settings import MIB, Settings, offload_horizon
from smdist.modelparallel.torch.session.current_model import current_model, wrapped_optimizer
from smdist.modelparallel.torch.tensor_parallel import replace_registered

_FLAGS = (
    "trace_execution_times", "trace_memory_usage", "overlapping_allreduce", "broadcast_buffers",
    "average_grads_across_microbatches", "find_unused_parameters", "gradient_as_bucket_view",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Arguments of `smp.DistributedModel` under their names in SMP v1, except the module itself."""

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
        """Method by which the planner finds the costs of modules: "estimate", "measure" or "auto".

        "auto" measures the costs, except for modules on the meta device, which it estimates.
        """
        if self.trace_device == "cpu":
            return "estimate"
        return "measure" if self.trace_execution_times or self.trace_memory_usage else "auto"

    def faults(self) -> Iterator[OptionError]:
        """Yield an error for each argument that is wrong or not supported."""
        for name in (each.name for each in fields(self)):
            if name in _FLAGS and not isinstance(getattr(self, name), bool):
                what = f"{name} is {getattr(self, name)!r}"
                yield OptionError(what, "it has to be a bool", "Pass True or False", about=name)
        yield from self._tracing()
        yield from self._reducing()

    def _tracing(self) -> Iterator[OptionError]:
        if self.trace_device not in ("gpu", "cpu"):
            why = "it has to be 'gpu' (costs of modules are measured) or 'cpu' (estimated)"
            hint = closest(str(self.trace_device), ["gpu", "cpu"])
            yield OptionError(
                f"trace_device is {self.trace_device!r}", why, hint, about="trace_device"
            )
        for name in ("trace_execution_times", "trace_memory_usage"):
            if self.trace_device == "cpu" and getattr(self, name) is True:
                why = "it measures costs, and trace_device='cpu' estimates them"
                hint = f"Leave out either {name} or trace_device"
                yield OptionError(f"{name} is True", why, hint, about=name)

    def _reducing(self) -> Iterator[OptionError]:
        if self.overlapping_allreduce is False:
            why = "gradients of a stage are always reduced as soon as they are complete"
            yield OptionError(
                "overlapping_allreduce is False", why, "Leave it out", about="overlapping_allreduce"
            )
        if self.gradient_as_bucket_view is True:
            why = "gradients are always copied into buffers when they are reduced"
            yield OptionError(
                "gradient_as_bucket_view is True",
                why,
                "Leave it out",
                about="gradient_as_bucket_view",
            )
        passes = self.backward_passes_per_step
        if type(passes) is not int or passes < 1:
            why = "it has to be the number of steps between two reductions of gradients"
            hint = "Pass an integer of at least 1"
            yield OptionError(
                f"backward_passes_per_step is {passes!r}",
                why,
                hint,
                about="backward_passes_per_step",
            )
        size = self.bucket_cap_mb
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
            why = "it has to be the size of a buffer in MiB"
            yield OptionError(
                f"bucket_cap_mb is {size!r}", why, "Pass a number above 0", about="bucket_cap_mb"
            )


Hook = Callable[[nn.Module, Any], Any]


class DistributedModel(Parallel):
    """Model that its first step splits into stages. A script has only one, as in SMP v1.

    Unlike in SMP, the model is not traced on a device: its forward pass runs once on tensors
    without values, and each module's costs are measured on the device where the module is. With
    `trace_device="cpu"` the costs are estimated instead, for models that fit on no device.

    The plan depends on measurements, so two runs of one job may be split differently if ranks are
    busy with other work. To keep a plan, save it on rank 0 once the model is split,
    `model.plan.save("plan.json")`, and pass it to later runs, `ModelParallel(plan="plan.json")`.
    With `trace_device="cpu"` the costs, and so the plan, are the same in every run.

    Gradients of replicas are averaged by this library's own all-reduce, or by FSDP2 (option
    `sharding=`), not by DDP. If a parameter has a gradient on no replica, its `grad` stays None.

    With fp16=True, or bf16=True, and without sharding, the module is converted to 16 bits in place:
    its parameters and floating-point buffers. Its inputs are converted when it is called, and its
    outputs to float32. A `smp.DistributedOptimizer` has float32 master weights.

    Args:
        module: Any module, also on the meta device.
        trace_device: "gpu" measures the costs of modules, except that modules on the meta device
            are estimated. "cpu" estimates all modules.
        trace_execution_times: True measures modules on the meta device too; not allowed with
            trace_device="cpu".
        overlapping_allreduce: Must be True: gradients are reduced while other stages compute.
        backward_passes_per_step: Number of steps whose gradients are added up before reduction.
        average_grads_across_microbatches: True averages gradients over the microbatches of a step,
            False sums them.
        bucket_cap_mb: Size of the buffers in which gradients are reduced, in MiB.
        trace_memory_usage: Same effect as trace_execution_times.
        broadcast_buffers: True copies the module's buffers from the first replica to all others
            before each step.
        find_unused_parameters: No effect; unused parameters are always allowed.
        gradient_as_bucket_view: Must be False.

    Raises:
        OptionError: Arguments are wrong or not supported (all faults are reported), or there is
            another DistributedModel.
    """

    def __init__(
        self, module: nn.Module, trace_device: str = "gpu", trace_execution_times: bool = False,
        overlapping_allreduce: bool = True, backward_passes_per_step: int = 1, *,
        average_grads_across_microbatches: bool = True, bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False, broadcast_buffers: bool = True,
        find_unused_parameters: bool = True, gradient_as_bucket_view: bool = False,
    ) -> None:  # fmt: skip
        arguments = ModelOptions(
            trace_device=trace_device, trace_memory_usage=trace_memory_usage,
            trace_execution_times=trace_execution_times, bucket_cap_mb=bucket_cap_mb,
            overlapping_allreduce=overlapping_allreduce,
            backward_passes_per_step=backward_passes_per_step,
            average_grads_across_microbatches=average_grads_across_microbatches,
            broadcast_buffers=broadcast_buffers, find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip
        raise_all(arguments.faults())
        other = current_model()
        if isinstance(other, DistributedModel):
            raise OptionError(
                "there is a DistributedModel already",
                "a script can have only one",
                "Put both models into one module, use smp.parallelize, or delete the first",
                about="module",
                kind="conflict",
            )
        degree = session.current().options.tensor_parallel_degree
        if degree > 1 and isinstance(module, nn.Module):
            module = replace_registered(module)
        super().__init__(module, _settings(arguments))

    @property
    def partitioned(self) -> bool:
        """True after the first step, which splits the model into stages."""
        return self.is_cut

    def get_module(self) -> nn.Module:
        """Return the user's model.

        Once the model is split, only parameters and buffers of this rank have values in it.
        """
        return self.module

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return an iterator over this rank's parameters.

        With `recurse`, parameters of submodules are included, as in `nn.Module.parameters`.
        """
        return self.parameters(recurse)

    def local_named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Return an iterator over pairs of name and parameter, for this rank's parameters.

        Names are those in the model; the arguments are those of `nn.Module.named_parameters`.
        """
        return self.named_parameters(prefix, recurse)

    def local_buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return an iterator over this rank's buffers.

        With `recurse`, buffers of submodules are included, as in `nn.Module.buffers`.
        """
        return self.buffers(recurse)

    def local_named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Return an iterator over pairs of name and buffer, for this rank's buffers.

        Names are those in the model; the arguments are those of `nn.Module.named_buffers`.
        """
        return self.named_buffers(prefix, recurse)

    def local_modules(self) -> Iterator[nn.Module]:
        """Return an iterator over the modules of this rank."""
        return self.modules()

    def local_named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return an iterator over pairs of name and module, for this rank's modules.

        Names are those in the model; the arguments are those of `nn.Module.named_modules`.
        """
        return self.named_modules(memo, prefix)

    def local_state_dict(self, **options: Any) -> dict[str, Any]:
        """Return the state dict of this rank's stages, marked by SMP's key "_smp_is_partial".

        Once the model is split, the dict also contains the plan by which it was split.

        Args:
            options: Options of `nn.Module.state_dict`.
        """
        part = {**self.local_values(**options), "_smp_is_partial": True}
        return {**part, PLAN: self.plan.document()} if self.is_cut else part

    def state_dict(self, *, gather_to_rank0: bool = False, **options: Any) -> Any:
        """Return the state dict of the whole model, under the names of the user's model.

        Once the model is split, all ranks of the replica have to call this method: a call waits for
        the others. As in SMP v1, either all replicas call it, or only the replica with dp_rank 0.
        With sharding="optimizer" or "full", all ranks of the world have to call it, because each
        replica has only a part of the values.

        Args:
            gather_to_rank0: True if only rank 0 of the world gets the values; other ranks get an
                empty dict.
            options: Options of `nn.Module.state_dict`; used only before the model is split.
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
        """Load a state dict of the whole model, or of this rank's stages.

        If the model is already split, values are loaded at once. If not, a state dict of one rank's
        stages, or for a model on the meta device, is loaded when the first step splits the model.

        Args:
            state_dict: Result of `state_dict` or `local_state_dict` of this class, or of
                `state_dict` of the user's model.
            strict: False to ignore parameters and buffers that are missing in the state dict.
            same_partition_load: True if the state dict has only the values of this rank's stages. A
                result of `local_state_dict` is recognized without this argument. If the
                result contains a plan, the first step splits the model by this plan.

        Returns:
            Missing and unexpected names, as from `nn.Module.load_state_dict`; both are empty if the
            model is already split or the values are loaded later.
        """
        if same_partition_load:
            state_dict = {**state_dict, "_smp_is_partial": True}
        return super().load_state_dict(state_dict, strict)

    def register_post_partition_hook(self, hook: Hook) -> None:
        """Register a function to be called once, when the first step has split the model.

        Args:
            hook: Function with two arguments, as in SMP v1: this model, and the latest
                DistributedOptimizer or None. The function's result is ignored.
        """
        self.when_cut(lambda: hook(self, wrapped_optimizer()) and None)

    def cpu(self) -> Self:
        """Move this rank's parameters and buffers to the CPU, and return this model."""
        super().cpu()
        return self

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Raise OptionError, since this method of SMP v1 is not supported."""
        raise OptionError(
            "model.join() is not supported",
            "replicas reduce their gradients together, so all of them have to run equally many "
            "steps",
            "Give all replicas equally many batches, with DistributedSampler and drop_last=True",
            about=("model", "join"),
            kind="unsupported",
        )

    def register_comm_hook(self, *_: Any, **__: Any) -> NoReturn:
        """Raise OptionError, since this method of SMP v1 is not supported."""
        raise OptionError(
            "model.register_comm_hook() is not supported",
            "gradients are averaged without hooks",
            "Leave the hook out; to send fewer bytes, pass sharding= and bf16=True to"
            " ModelParallel",
            about=("model", "register_comm_hook"),
            kind="unsupported",
        )


def _settings(arguments: ModelOptions) -> Settings:
    options = session.current().options
    return Settings(
        options=options, sharding=options.sharding, shard_degree=options.shard_degree,
        gradient_reduction=options.gradient_reduction,
        bf16=options.bf16, fp16=options.fp16, seed=options.seed, costs=arguments.costs,
        offload_horizon=offload_horizon(options),
        offloads_optimizer=options.offload_optimizer,
        fusion_bytes=int(arguments.bucket_cap_mb * MIB),
        averages=arguments.average_grads_across_microbatches,
        passes_per_step=arguments.backward_passes_per_step,
        broadcasts_buffers=arguments.broadcast_buffers,
    )  # fmt: skip
