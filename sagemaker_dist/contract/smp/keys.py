# SPDX-License-Identifier: Apache-2.0
"""Allowed values of each SMP key, one table for the typed options and the dict form.

Sources, all read 2026-11-21:

* Version 1: "Run a Distributed Training Job Using the SageMaker Python SDK", Configuration
  Parameters for distribution (SageMaker Python SDK documentation), and Amazon SageMaker
  Developer Guide, Sharded Data Parallelism.
* Version 2: Amazon SageMaker Developer Guide, "The SageMaker model parallel library v2
  reference", SMP v2 core feature configuration parameters.
* Keys that AWS uses without describing them: `load_partition`, `partition_file` and the pipeline
  `_only_forward` (SageMaker SDK 2.257.7, fw_utils.validate_mp_config);
  `delayed_parameter_initialization`, `static_mode` and `fast_mode` (amazon-sagemaker-examples).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from sagemaker_dist.errors import OptionError, closest


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Allowed values of one key.

    Attributes:
        holds: Function that returns whether a value is allowed.
        why: Reason for refusing other values.
        hint: Hint for other values.
        words: Allowed words; if given, the hint is the closest of them.
    """

    holds: Callable[[object], bool]
    why: str
    hint: str = ""
    words: tuple[str, ...] = ()

    def faults(self, name: str, value: object, where: str) -> Iterator[OptionError]:
        """Yield the fault of a value; messages name it `name` in `where`."""
        if not self.holds(value):
            hint = closest(str(value), self.words) if self.words else self.hint
            yield OptionError(f"{where} has {name}={value!r}", self.why, hint, about=name)


def _whole(least: int, why: str) -> Key:
    return Key(
        holds=lambda value: type(value) is int and value >= least,
        why=why,
        hint=f"Pass an integer of at least {least}",
    )


def _number(most: float, why: str, hint: str) -> Key:
    """Return a key for numbers from 0 to `most`, without inf and nan, which JSON cannot carry."""
    return Key(
        holds=lambda value: (
            isinstance(value, int | float) and type(value) is not bool and 0 <= value <= most
        ),
        why=why,
        hint=hint,
    )


def _word(*words: str, why: str) -> Key:
    return Key(holds=lambda value: type(value) is str and value in words, why=why, words=words)


def _text(why: str) -> Key:
    return Key(holds=lambda value: type(value) is str, why=why, hint="Pass a string")


_SWITCH: Final = Key(
    holds=lambda value: type(value) is bool,
    why="it is a switch, and a string would count as true",
    hint="Pass True or False",
)
_TENSOR: Final = _whole(1, "a layer is on at least one rank")
_HORIZON: Final = _whole(1, "activations are loaded at least one step ahead")

V1: Final[Mapping[str, Key]] = {
    "partitions": _whole(1, "a model has at least one partition"),
    "pipeline_parallel_degree": _whole(1, "a model has at least one stage"),
    "microbatches": _whole(1, "a batch has at least one microbatch"),
    "pipeline": _word("interleaved", "simple", "_only_forward", why="no such schedule exists"),
    "optimize": _word("memory", "speed", why="no such aim exists"),
    "placement_strategy": _word(
        "cluster",
        "spread",
        *map("".join, permutations("DPT")),
        why="no such order of ranks exists",
    ),
    "auto_partition": _SWITCH,
    "default_partition": _whole(0, "partitions are numbered from 0"),
    "contiguous": _SWITCH,
    "horovod": _SWITCH,
    "memory_weight": _number(
        1, "it weighs memory against computation", "Pass a number from 0.0 to 1.0"
    ),
    "ddp": _SWITCH,
    "ddp_port": _whole(0, "it is the number of a port"),
    "ddp_dist_backend": _word("auto", "nccl", why="no such backend exists"),
    "active_microbatches": _whole(1, "at least one microbatch is under way"),
    "deterministic_server": _SWITCH,
    "offload_activations": _SWITCH,
    "activation_loading_horizon": _HORIZON,
    "tensor_parallel_degree": _TENSOR,
    "prescaled_batch": _SWITCH,
    "shard_optimizer_state": _SWITCH,
    "fp16": _SWITCH,
    "fp16_params": _SWITCH,
    "bf16": _SWITCH,
    "skip_tracing": _SWITCH,
    "sharded_data_parallel_degree": _whole(1, "a sharding group has at least one rank"),
    "sdp_reduce_bucket_size": _whole(0, "it is a number of elements"),
    "sdp_param_persistence_threshold": _whole(0, "it is a number of elements"),
    "sdp_max_live_parameters": _whole(0, "it is a number of parameters"),
    "sdp_hierarchical_allgather": _SWITCH,
    "sdp_gradient_clipping": _number(
        math.nextafter(math.inf, 0), "it is a norm", "Pass a finite number of at least 0"
    ),
    "load_partition": _SWITCH,
    "partition_file": _text("it is the path of a file"),
    "delayed_parameter_initialization": _SWITCH,
    "static_mode": _SWITCH,
    "fast_mode": _SWITCH,
}
V2: Final[Mapping[str, Key]] = {
    "hybrid_shard_degree": _whole(0, "it is a number of ranks, and 0 leaves it to FSDP"),
    "sm_activation_offloading": _SWITCH,
    "activation_loading_horizon": _HORIZON,
    "fsdp_cache_flush_warnings": _SWITCH,
    "allow_empty_shards": _SWITCH,
    "tensor_parallel_degree": _TENSOR,
    "context_parallel_degree": _whole(1, "a sequence is on at least one rank"),
    "expert_parallel_degree": _whole(1, "experts are on at least one rank"),
    "random_seed": Key(
        holds=lambda value: type(value) is int, why="a seed is a number", hint="Pass an integer"
    ),
}
MPI: Final[Mapping[str, Key]] = {  # the mpi block beside version 1
    "processes_per_host": _whole(1, "every host starts at least one rank"),
    "custom_mpi_options": _text("it is a piece of a command line"),
}
_PLACEMENT: Final = "placement_strategy"  # SageMaker SDK 2.257.7 sends it with recipes of v2, too
KEYS: Final[Mapping[int | None, Mapping[str, Key]]] = {
    1: V1,
    2: {**V2, _PLACEMENT: V1[_PLACEMENT]},
    None: {**V1, **V2},
}
