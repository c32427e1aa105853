# SPDX-License-Identifier: Apache-2.0
"""What SMP's scripts read of it while it runs: `smp.state.cfg.microbatches`, `smp.state.model`."""

from __future__ import annotations

from typing import Any

from smdist.modelparallel.torch.parallel import active
from smdist.modelparallel.torch.session import current


class Cfg:
    """The configuration, by SMP v1's keys; those that mean nothing here have their defaults."""

    @property
    def pipeline_parallel_degree(self) -> int:
        """Ranks of a pipeline."""
        return current().groups.pp_size

    @property
    def tensor_parallel_degree(self) -> int:
        """Ranks that share a tensor."""
        return current().groups.tp_size

    @property
    def microbatches(self) -> int | str:
        """Parts of a batch; "auto" while the planner has not decided."""
        model = active.model()
        if model is not None and model.is_cut:
            return model.plan.num_microbatches
        return current().options.microbatches

    @property
    def pipeline(self) -> str:
        """The schedule; "auto" while the planner has not decided."""
        model = active.model()
        return model.plan.schedule if model and model.is_cut else current().options.pipeline

    @property
    def placement_strategy(self) -> str:
        """Where ranks are."""
        return current().options.placement_strategy

    @property
    def bf16(self) -> bool:
        """Whether sharded parameters are computed with in bfloat16."""
        return current().options.bf16

    @property
    def fp16(self) -> bool:
        """Never: float16 is autocast's and the GradScaler's here."""
        return False

    @property
    def fp16_params(self) -> bool:
        """Never, as fp16."""
        return False

    @property
    def prescaled_batch(self) -> bool:
        """Never: tensors are not shared out, so every replica has a batch of its own."""
        return False

    @property
    def ddp(self) -> bool:
        """Always: torch.distributed runs, and process groups are its."""
        return True

    @property
    def shard_optimizer_state(self) -> bool:
        """Whether replicas share out the optimizer's state."""
        return current().options.sharding != "none"

    @property
    def sharded_data_parallel_degree(self) -> int:
        """Replicas that share out parameters; 1 where each has all of its stages."""
        options = current().options
        if options.sharding != "full":
            return 1
        return options.shard_degree or current().groups.rdp_size


class State:
    """What there is in this process.

    Attributes:
        cfg: The configuration.
    """

    cfg = Cfg()

    @property
    def model(self) -> Any:
        """The model that was wrapped last, or None."""
        return active.model()

    @property
    def optimizer(self) -> Any:
        """The DistributedOptimizer that was made last, or None."""
        return active.wrapped_optimizer()


state = State()
