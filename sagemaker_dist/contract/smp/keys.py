# SPDX-License-Identifier: Apache-2.0
"""Allowed values of each key of AWS's model parallel library (SMP), for typed options and dicts.

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
    """Rule for the values of one key.

    Attributes:
        is_valid: Function that returns whether a value is allowed.
        why: Reason why other values are refused, for messages.
        hint: Hint for the user; unused if there are `choices`.
        choices: Allowed words. The hint names the word that is most like the value. () if the
            allowed values are not a list of words.
    """

    is_valid: Callable[[object], bool]
    why: str
    hint: str = ""
    choices: tuple[str, ...] = ()

    def faults(self, name: str, value: object, where: str) -> Iterator[OptionError]:
        """Yield a fault if the value is not allowed.

        Args:
            name: Name of the key.
            value: Value of the key, of any type.
            where: Place of the key in messages, such as "SMPv1".
        """
        if not self.is_valid(value):
            hint = closest(str(value), self.choices) if self.choices else self.hint
            yield OptionError(f"{where} has {name}={value!r}", self.why, hint, about=name)


def _integer(least: int, why: str) -> Key:
    return Key(
        is_valid=lambda value: type(value) is int and value >= least,
        why=why,
        hint=f"Pass an integer of at least {least}",
    )


def _number(most: float, why: str, hint: str) -> Key:
    """Return the rule for numbers from 0 to `most`; inf and nan, which JSON lacks, are refused."""
    return Key(
        is_valid=lambda value: (
            isinstance(value, int | float) and type(value) is not bool and 0 <= value <= most
        ),
        why=why,
        hint=hint,
    )


def _choice(*choices: str, why: str) -> Key:
    return Key(
        is_valid=lambda value: type(value) is str and value in choices, why=why, choices=choices
    )


def _string(why: str) -> Key:
    return Key(is_valid=lambda value: type(value) is str, why=why, hint="Pass a string")


_SWITCH: Final = Key(
    is_valid=lambda value: type(value) is bool,
    why="it must be a bool, because a string such as 'False' would count as true",
    hint="Pass True or False",
)
_TENSOR: Final = _integer(1, "a layer is on at least one rank")
_HORIZON: Final = _integer(1, "activations are loaded at least one step ahead")

V1: Final[Mapping[str, Key]] = {
    "partitions": _integer(1, "a model has at least one partition"),
    "pipeline_parallel_degree": _integer(1, "a model has at least one stage"),
    "microbatches": _integer(1, "a batch has at least one microbatch"),
    "pipeline": _choice("interleaved", "simple", "_only_forward", why="no such schedule exists"),
    "optimize": _choice("memory", "speed", why="the library optimizes either memory or speed"),
    "placement_strategy": _choice(
        "cluster",
        "spread",
        *map("".join, permutations("DPT")),
        why="no such order of ranks exists",
    ),
    "auto_partition": _SWITCH,
    "default_partition": _integer(0, "partitions are numbered from 0"),
    "contiguous": _SWITCH,
    "horovod": _SWITCH,
    "memory_weight": _number(
        1, "it is the weight of memory, between 0 and 1", "Pass a number from 0.0 to 1.0"
    ),
    "ddp": _SWITCH,
    "ddp_port": _integer(0, "it must be the number of a port"),
    "ddp_dist_backend": _choice("auto", "nccl", why="no such backend exists"),
    "active_microbatches": _integer(1, "at least one microbatch is in flight"),
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
    "sharded_data_parallel_degree": _integer(1, "a sharding group has at least one rank"),
    "sdp_reduce_bucket_size": _integer(0, "it must be a number of elements"),
    "sdp_param_persistence_threshold": _integer(0, "it must be a number of elements"),
    "sdp_max_live_parameters": _integer(0, "it must be a number of parameters"),
    "sdp_hierarchical_allgather": _SWITCH,
    "sdp_gradient_clipping": _number(
        math.nextafter(math.inf, 0),
        "it is the largest allowed norm, which must be finite",
        "Pass a finite number of at least 0",
    ),
    "load_partition": _SWITCH,
    "partition_file": _string("it must be the path of a file"),
    "delayed_parameter_initialization": _SWITCH,
    "static_mode": _SWITCH,
    "fast_mode": _SWITCH,
}
V2: Final[Mapping[str, Key]] = {
    "hybrid_shard_degree": _integer(0, "it must be a number of ranks, or 0 to let FSDP choose it"),
    "sm_activation_offloading": _SWITCH,
    "activation_loading_horizon": _HORIZON,
    "fsdp_cache_flush_warnings": _SWITCH,
    "allow_empty_shards": _SWITCH,
    "tensor_parallel_degree": _TENSOR,
    "context_parallel_degree": _integer(1, "a sequence is on at least one rank"),
    "expert_parallel_degree": _integer(1, "experts are on at least one rank"),
    "random_seed": Key(
        is_valid=lambda value: type(value) is int, why="a seed is a number", hint="Pass an integer"
    ),
}
MPI: Final[Mapping[str, Key]] = {  # keys of distribution["mpi"], which starts version 1
    "processes_per_host": _integer(1, "every host starts at least one rank"),
    "custom_mpi_options": _string("it is appended to mpirun's command line and must be a str"),
}
_PLACEMENT: Final = "placement_strategy"  # SageMaker SDK 2.257.7 also sends it for recipes of v2
KEYS: Final[Mapping[int | None, Mapping[str, Key]]] = {  # by version; None: version unknown
    1: V1,
    2: {**V2, _PLACEMENT: V1[_PLACEMENT]},
    None: {**V1, **V2},
}
