# SPDX-License-Identifier: Apache-2.0
"""Object `smp.state` of SMP: configuration, model and optimizer of this process."""

from __future__ import annotations

from typing import Any

from smdist.modelparallel.torch.parallel.settings import DEFAULT_HORIZON
from smdist.modelparallel.torch.session import current
from smdist.modelparallel.torch.session.current_model import current_model, wrapped_optimizer


class Cfg:
    """Configuration of the session under SMP v1's keys, as `smp.state.cfg`.

    Keys that have no effect in this library have SMP's default values.
    """

    @property
    def pipeline_parallel_degree(self) -> int:
        """Number of ranks in a pipeline."""
        return current().groups.pp_size

    @property
    def tensor_parallel_degree(self) -> int:
        """Number of ranks over which each layer is split."""
        return current().groups.tp_size

    @property
    def microbatches(self) -> int | str:
        """Number of microbatches in a batch; "auto" until the planner has chosen a plan."""
        model = current_model()
        if model is not None and model.is_cut:
            return model.plan.num_microbatches
        return current().options.microbatches

    @property
    def pipeline(self) -> str:
        """Schedule of the pipeline; "auto" until the planner has chosen a plan."""
        model = current_model()
        return model.plan.schedule if model and model.is_cut else current().options.pipeline

    @property
    def placement_strategy(self) -> str:
        """Order of ranks over hosts: "cluster", "spread", or SMP's letters such as "DPT"."""
        return current().options.placement_strategy

    @property
    def bf16(self) -> bool:
        """True if forward and backward passes are in bfloat16, and updates in float32."""
        return current().options.bf16

    @property
    def offload_activations(self) -> bool:
        """True if activations are in the host's memory between forward and backward pass."""
        return current().options.offload_activations

    @property
    def activation_loading_horizon(self) -> int:
        """Largest number of layers whose activations are on the device at once with offload."""
        return current().options.activation_loading_horizon or DEFAULT_HORIZON

    @property
    def fp16(self) -> bool:
        """True if forward and backward passes are in float16, and updates in float32."""
        return current().options.fp16

    @property
    def fp16_params(self) -> bool:
        """Always False: SMP's own layers, which this option creates in float16, are not here."""
        return False

    @property
    def prescaled_batch(self) -> bool:
        """True if layers are split over ranks, which then get the same batch."""
        return current().groups.tp_size > 1

    @property
    def ddp(self) -> bool:
        """Always True: torch.distributed is initialized and provides the process groups."""
        return True

    @property
    def shard_optimizer_state(self) -> bool:
        """True if each replica stores only a part of the optimizer's state."""
        return str(_settings().sharding) != "none"

    @property
    def sharded_data_parallel_degree(self) -> int:
        """Number of replicas over which sharding="full" splits parameters; otherwise 1."""
        settings = _settings()
        if settings.sharding != "full":
            return 1
        return int(settings.shard_degree or current().groups.rdp_size)


def _settings() -> Any:
    """Return the settings of the current model, which a plan may have changed; else the options."""
    model: Any = current_model()
    return current().options if model is None else model.settings


class SmpState:
    """Configuration, model and optimizer of this process.

    Attributes:
        cfg: Configuration under SMP's keys.
    """

    cfg = Cfg()

    @property
    def model(self) -> Any:
        """Last model that the script made with smp.DistributedModel or smp.parallelize, or None."""
        return current_model()

    @property
    def optimizer(self) -> Any:
        """Last smp.DistributedOptimizer that the script made, or None."""
        return wrapped_optimizer()


state = SmpState()
