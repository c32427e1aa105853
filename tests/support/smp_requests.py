# SPDX-License-Identifier: Apache-2.0
"""Valid and invalid parameters of AWS's model parallel library, with the errors of the invalid."""

from itertools import permutations

VALID_V1 = {
    "partitions": (1, 8),
    "pipeline_parallel_degree": (1, 16),
    "microbatches": (1, 4),
    "pipeline": ("interleaved", "simple", "_only_forward"),
    "optimize": ("memory", "speed"),
    "placement_strategy": ("cluster", "spread", *map("".join, permutations("DPT"))),
    "auto_partition": (True,),
    "contiguous": (True, False),
    "horovod": (True, False),
    "memory_weight": (0, 0.0, 0.5, 1, 1.0),
    "ddp": (True, False),
    "active_microbatches": (1, 3),
    "deterministic_server": (True, False),
    "offload_activations": (True, False),
    "activation_loading_horizon": (1, 4),
    "tensor_parallel_degree": (1,),
    "prescaled_batch": (True, False),
    "shard_optimizer_state": (True, False),
    "fp16": (True, False),
    "fp16_params": (True, False),
    "bf16": (False,),
    "skip_tracing": (True, False),
    "sharded_data_parallel_degree": (1, 64),
    "sdp_reduce_bucket_size": (0, 500_000_000),
    "sdp_param_persistence_threshold": (0, 1_000_000),
    "sdp_max_live_parameters": (0, 1_000_000_000),
    "sdp_hierarchical_allgather": (True, False),
    "sdp_gradient_clipping": (0, 1, 0.5),
    "load_partition": (True, False),
    "partition_file": ("partition.pkl",),
    "delayed_parameter_initialization": (True, False),
    "static_mode": (True, False),
    "fast_mode": (True, False),
}
COMPANIONS = [  # keys that are valid only together with another
    {"auto_partition": False, "default_partition": 0, "partitions": 1},
    {"default_partition": 3, "partitions": 4},
    {"ddp": True, "ddp_port": 0},
    {"ddp": False, "ddp_port": 29500},
    {"ddp": True, "ddp_dist_backend": "nccl"},
    {"ddp": True, "ddp_dist_backend": "auto"},
    {"ddp": True, "horovod": False},
    {"ddp": True, "tensor_parallel_degree": 8, "pipeline_parallel_degree": 2},
    {"bf16": True, "sharded_data_parallel_degree": 2, "fp16": False},
    {"fp16": True, "sharded_data_parallel_degree": 2, "pipeline_parallel_degree": 1},
    {"sharded_data_parallel_degree": 2, "tensor_parallel_degree": 2, "ddp": True},  # since v1.15
]
VALID_V2 = {
    "hybrid_shard_degree": (0, 1, 256),
    "sm_activation_offloading": (True, False),
    "activation_loading_horizon": (1, 2),
    "fsdp_cache_flush_warnings": (True, False),
    "allow_empty_shards": (True, False),
    "tensor_parallel_degree": (1, 8),
    "context_parallel_degree": (1, 4),
    "expert_parallel_degree": (1, 8),
    "random_seed": (-1, 0, 12345),
}
V2_COMPANIONS = [
    {"context_parallel_degree": 4, "hybrid_shard_degree": 4},
    {"context_parallel_degree": 4, "hybrid_shard_degree": 0},
    {"context_parallel_degree": 2, "tensor_parallel_degree": 2, "hybrid_shard_degree": 8},
    {"expert_parallel_degree": 8, "tensor_parallel_degree": 1, "hybrid_shard_degree": 4},
]
RIGHT_V1 = [{key: value} for key, values in VALID_V1.items() for value in values] + COMPANIONS
RIGHT_V2 = [{key: value} for key, values in VALID_V2.items() for value in values] + V2_COMPANIONS
SDP = "sharded_data_parallel_degree"
PP = "pipeline_parallel_degree"
TP = "tensor_parallel_degree"

# Each request has one fault: its kind, and the key.
WRONG_V1 = [
    ({"partitions": 0}, "option", "partitions"),
    ({"partitions": True}, "option", "partitions"),
    ({PP: "2"}, "option", "pipeline_parallel_degree"),
    ({PP: None}, "option", "pipeline_parallel_degree"),
    ({"microbatches": 1.0}, "option", "microbatches"),
    ({"pipeline": "interleave"}, "option", "pipeline"),
    ({"pipeline": None}, "option", "pipeline"),
    ({"optimize": "Speed"}, "option", "optimize"),
    ({"placement_strategy": "clustr"}, "option", "placement_strategy"),
    ({"placement_strategy": "DDT"}, "option", "placement_strategy"),
    ({"auto_partition": "true"}, "option", "auto_partition"),
    ({"partitions": 2, "default_partition": -1}, "option", "default_partition"),
    ({"contiguous": 1}, "option", "contiguous"),
    ({"horovod": "false"}, "option", "horovod"),
    ({"memory_weight": 1.1}, "option", "memory_weight"),
    ({"memory_weight": True}, "option", "memory_weight"),
    ({"ddp": "True"}, "option", "ddp"),
    ({"ddp": None}, "option", "ddp"),
    ({"ddp": True, "ddp_port": -1}, "option", "ddp_port"),
    ({"ddp": True, "ddp_dist_backend": "gloo"}, "option", "ddp_dist_backend"),
    ({"active_microbatches": 0}, "option", "active_microbatches"),
    ({"deterministic_server": 0}, "option", "deterministic_server"),
    ({"offload_activations": "yes"}, "option", "offload_activations"),
    ({"activation_loading_horizon": 0}, "option", "activation_loading_horizon"),
    ({TP: True}, "option", "tensor_parallel_degree"),
    ({"prescaled_batch": []}, "option", "prescaled_batch"),
    ({"shard_optimizer_state": 1}, "option", "shard_optimizer_state"),
    ({"fp16": "O1"}, "option", "fp16"),
    ({"fp16_params": "true"}, "option", "fp16_params"),
    ({"bf16": "true"}, "option", "bf16"),
    ({"skip_tracing": None}, "option", "skip_tracing"),
    ({SDP: 0}, "option", "sharded_data_parallel_degree"),
    ({"sdp_reduce_bucket_size": 5e8}, "option", "sdp_reduce_bucket_size"),
    ({"sdp_param_persistence_threshold": "1e6"}, "option", "sdp_param_persistence_threshold"),
    ({"sdp_max_live_parameters": -1}, "option", "sdp_max_live_parameters"),
    ({"sdp_hierarchical_allgather": "no"}, "option", "sdp_hierarchical_allgather"),
    ({"sdp_gradient_clipping": float("inf")}, "option", "sdp_gradient_clipping"),
    ({"sdp_gradient_clipping": float("nan")}, "option", "sdp_gradient_clipping"),
    ({"load_partition": "true"}, "option", "load_partition"),
    ({"partition_file": 3}, "option", "partition_file"),
    ({"delayed_parameter_initialization": 1}, "option", "delayed_parameter_initialization"),
    ({"static_mode": 0}, "option", "static_mode"),
    ({"fast_mode": 0}, "option", "fast_mode"),
    ({"partitions": 2, PP: 2}, "conflict", "pipeline_parallel_degree"),
    ({"auto_partition": False, "partitions": 2}, "conflict", "auto_partition"),
    ({"default_partition": 0, PP: 2}, "conflict", "default_partition"),
    ({"default_partition": 4, "partitions": 4}, "conflict", "default_partition"),
    ({"default_partition": 1, "partitions": 1}, "conflict", "default_partition"),
    ({"ddp_port": 1}, "conflict", "ddp_port"),
    ({"ddp_dist_backend": "nccl"}, "conflict", "ddp_dist_backend"),
    ({"ddp": True, "horovod": True}, "conflict", "horovod"),
    ({"bf16": True}, "conflict", "bf16"),
    ({"bf16": True, "fp16": True, SDP: 2}, "conflict", "bf16"),
    ({SDP: 4, PP: 2}, "conflict", "sharded_data_parallel_degree"),
    ({SDP: 4, "partitions": 2}, "conflict", "sharded_data_parallel_degree"),
    ({SDP: 4, "shard_optimizer_state": True}, "conflict", "shard_optimizer_state"),
    ({TP: 2}, "conflict", "tensor_parallel_degree"),
    ({TP: 2, "ddp": False}, "conflict", "tensor_parallel_degree"),
]
WRONG_V2 = [
    ({"hybrid_shard_degree": -1}, "option", "hybrid_shard_degree"),
    ({"hybrid_shard_degree": "8"}, "option", "hybrid_shard_degree"),
    ({"sm_activation_offloading": "true"}, "option", "sm_activation_offloading"),
    ({"activation_loading_horizon": 0}, "option", "activation_loading_horizon"),
    ({"fsdp_cache_flush_warnings": 1}, "option", "fsdp_cache_flush_warnings"),
    ({"allow_empty_shards": None}, "option", "allow_empty_shards"),
    ({TP: 0}, "option", "tensor_parallel_degree"),
    ({"context_parallel_degree": False}, "option", "context_parallel_degree"),
    ({"expert_parallel_degree": 1.5}, "option", "expert_parallel_degree"),
    ({"random_seed": True}, "option", "random_seed"),
    ({"random_seed": "7"}, "option", "random_seed"),
    (
        {"context_parallel_degree": 8, "hybrid_shard_degree": 4},
        "conflict",
        "context_parallel_degree",
    ),
    ({"expert_parallel_degree": 2, TP: 4}, "conflict", "expert_parallel_degree"),
]
WRONG = [(1, *case) for case in WRONG_V1] + [(2, *case) for case in WRONG_V2]
# One message of each check, in full, after the place of the parameters.
TEXTS = [
    (
        1,
        {"partitions": 0},
        "partitions=0: a model has at least one partition. Pass an integer of at least 1.",
    ),
    (
        1,
        {"optimize": "Speed"},
        "optimize='Speed': the library optimizes either memory or speed. Did you mean 'speed'?",
    ),
    (
        1,
        {"partitions": 2, PP: 2},
        f"both 'partitions' and '{PP}': they are two names of the same parameter. Keep one of"
        " them.",
    ),
    (
        2,
        {"context_parallel_degree": 8, "hybrid_shard_degree": 4},
        "context_parallel_degree=8 with hybrid_shard_degree=4: a sequence is split over the ranks"
        " of one sharding group. Pass a context_parallel_degree of 1 to 4, or a"
        " hybrid_shard_degree of at least 8.",
    ),
]
