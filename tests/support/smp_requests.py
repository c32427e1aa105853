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
SWITCH = "it is a switch, and a string would count as true. Pass True or False."
SDP = "sharded_data_parallel_degree"
PP = "pipeline_parallel_degree"
TP = "tensor_parallel_degree"
ONE = "Pass an integer of at least 1."
ZERO = "Pass an integer of at least 0."

WRONG_V1 = [
    ({"partitions": 0}, f"partitions=0: a model has at least one partition. {ONE}"),
    ({"partitions": True}, f"partitions=True: a model has at least one partition. {ONE}"),
    ({PP: "2"}, f"{PP}='2': a model has at least one stage. {ONE}"),
    ({PP: None}, f"{PP}=None: a model has at least one stage. {ONE}"),
    ({"microbatches": 1.0}, f"microbatches=1.0: a batch has at least one microbatch. {ONE}"),
    (
        {"pipeline": "interleave"},
        "pipeline='interleave': no such schedule exists. Did you mean 'interleaved'?",
    ),
    (
        {"pipeline": None},
        "pipeline=None: no such schedule exists."
        " Valid are '_only_forward', 'interleaved', 'simple'.",
    ),
    ({"optimize": "Speed"}, "optimize='Speed': no such aim exists. Did you mean 'speed'?"),
    (
        {"placement_strategy": "clustr"},
        "placement_strategy='clustr': no such order of ranks exists. Did you mean 'cluster'?",
    ),
    (
        {"placement_strategy": "DDT"},
        "placement_strategy='DDT': no such order of ranks exists. Valid are 'DPT', 'DTP', 'PDT',"
        " 'PTD', 'TDP', 'TPD', 'cluster', 'spread'.",
    ),
    ({"auto_partition": "true"}, f"auto_partition='true': {SWITCH}"),
    (
        {"partitions": 2, "default_partition": -1},
        f"default_partition=-1: partitions are numbered from 0. {ZERO}",
    ),
    ({"contiguous": 1}, f"contiguous=1: {SWITCH}"),
    ({"horovod": "false"}, f"horovod='false': {SWITCH}"),
    (
        {"memory_weight": 1.1},
        "memory_weight=1.1: it weighs memory against computation. Pass a number from 0.0 to 1.0.",
    ),
    (
        {"memory_weight": True},
        "memory_weight=True: it weighs memory against computation. Pass a number from 0.0 to 1.0.",
    ),
    ({"ddp": "True"}, f"ddp='True': {SWITCH}"),
    ({"ddp": None}, f"ddp=None: {SWITCH}"),
    ({"ddp": True, "ddp_port": -1}, f"ddp_port=-1: it is the number of a port. {ZERO}"),
    (
        {"ddp": True, "ddp_dist_backend": "gloo"},
        "ddp_dist_backend='gloo': no such backend exists. Valid are 'auto', 'nccl'.",
    ),
    (
        {"active_microbatches": 0},
        f"active_microbatches=0: at least one microbatch is under way. {ONE}",
    ),
    ({"deterministic_server": 0}, f"deterministic_server=0: {SWITCH}"),
    ({"offload_activations": "yes"}, f"offload_activations='yes': {SWITCH}"),
    (
        {"activation_loading_horizon": 0},
        f"activation_loading_horizon=0: activations are loaded at least one step ahead. {ONE}",
    ),
    ({TP: True}, f"{TP}=True: a layer is on at least one rank. {ONE}"),
    ({"prescaled_batch": []}, f"prescaled_batch=[]: {SWITCH}"),
    ({"shard_optimizer_state": 1}, f"shard_optimizer_state=1: {SWITCH}"),
    ({"fp16": "O1"}, f"fp16='O1': {SWITCH}"),
    ({"fp16_params": "true"}, f"fp16_params='true': {SWITCH}"),
    ({"bf16": "true"}, f"bf16='true': {SWITCH}"),
    ({"skip_tracing": None}, f"skip_tracing=None: {SWITCH}"),
    ({SDP: 0}, f"{SDP}=0: a sharding group has at least one rank. {ONE}"),
    (
        {"sdp_reduce_bucket_size": 5e8},
        f"sdp_reduce_bucket_size=500000000.0: it is a number of elements. {ZERO}",
    ),
    (
        {"sdp_param_persistence_threshold": "1e6"},
        f"sdp_param_persistence_threshold='1e6': it is a number of elements. {ZERO}",
    ),
    (
        {"sdp_max_live_parameters": -1},
        f"sdp_max_live_parameters=-1: it is a number of parameters. {ZERO}",
    ),
    ({"sdp_hierarchical_allgather": "no"}, f"sdp_hierarchical_allgather='no': {SWITCH}"),
    (
        {"sdp_gradient_clipping": float("inf")},
        "sdp_gradient_clipping=inf: it is a norm. Pass a finite number of at least 0.",
    ),
    (
        {"sdp_gradient_clipping": float("nan")},
        "sdp_gradient_clipping=nan: it is a norm. Pass a finite number of at least 0.",
    ),
    ({"load_partition": "true"}, f"load_partition='true': {SWITCH}"),
    ({"partition_file": 3}, "partition_file=3: it is the path of a file. Pass a string."),
    (
        {"delayed_parameter_initialization": 1},
        f"delayed_parameter_initialization=1: {SWITCH}",
    ),
    ({"static_mode": 0}, f"static_mode=0: {SWITCH}"),
    ({"fast_mode": 0}, f"fast_mode=0: {SWITCH}"),
    (
        {"partitions": 2, PP: 2},
        f"both 'partitions' and '{PP}': they are two names of one number. Keep one of them.",
    ),
    (
        {"auto_partition": False, "partitions": 2},
        "auto_partition=False without default_partition: layers that the script does not"
        " assign go to that partition. Add default_partition.",
    ),
    (
        {"default_partition": 0, PP: 2},
        "default_partition=0 without partitions: SageMaker's SDK compares the two, and fails"
        f" without partitions. Pass the number of stages as partitions, not as {PP}.",
    ),
    (
        {"default_partition": 4, "partitions": 4},
        "default_partition=4 with partitions=4: partitions are numbered from 0. Pass 0 to 3.",
    ),
    (
        {"default_partition": 1, "partitions": 1},
        "default_partition=1 with partitions=1: partitions are numbered from 0. Pass 0.",
    ),
    ({"ddp_port": 1}, "ddp_port=1 without ddp: it is an option of ddp. Pass ddp=True."),
    (
        {"ddp_dist_backend": "nccl"},
        "ddp_dist_backend='nccl' without ddp: it is an option of ddp. Pass ddp=True.",
    ),
    (
        {"ddp": True, "horovod": True},
        "both ddp=True and horovod=True: only one of them can average the gradients. Pass ddp"
        " for PyTorch or horovod for TensorFlow.",
    ),
    (
        {"bf16": True},
        f"bf16=True without {SDP}: SMP v1 trains in BF16 only with sharded data parallelism."
        f" Pass a {SDP} of at least 2, or leave bf16 out.",
    ),
    (
        {"bf16": True, "fp16": True, SDP: 2},
        "both bf16=True and fp16=True: a model trains in one of them. Keep one of them.",
    ),
    (
        {SDP: 4, PP: 2},
        f"{SDP}=4 with {PP}=2: sharded data parallelism does not work with a pipeline."
        f" Pass {PP}=1, or leave {SDP} out.",
    ),
    (
        {SDP: 4, "partitions": 2},
        f"{SDP}=4 with partitions=2: sharded data parallelism does not work with a pipeline."
        f" Pass partitions=1, or leave {SDP} out.",
    ),
    (
        {SDP: 4, "shard_optimizer_state": True},
        f"{SDP}=4 with shard_optimizer_state=True: sharded data parallelism shards the optimizer's"
        " state itself. Leave shard_optimizer_state out.",
    ),
    ({TP: 2}, f"{TP}=2 without ddp=True: tensors are split among the ranks of ddp. Pass ddp=True."),
    (
        {TP: 2, "ddp": False},
        f"{TP}=2 without ddp=True: tensors are split among the ranks of ddp. Pass ddp=True.",
    ),
]
WRONG_V2 = [
    (
        {"hybrid_shard_degree": -1},
        f"hybrid_shard_degree=-1: it is a number of ranks, and 0 leaves it to FSDP. {ZERO}",
    ),
    (
        {"hybrid_shard_degree": "8"},
        f"hybrid_shard_degree='8': it is a number of ranks, and 0 leaves it to FSDP. {ZERO}",
    ),
    ({"sm_activation_offloading": "true"}, f"sm_activation_offloading='true': {SWITCH}"),
    (
        {"activation_loading_horizon": 0},
        f"activation_loading_horizon=0: activations are loaded at least one step ahead. {ONE}",
    ),
    ({"fsdp_cache_flush_warnings": 1}, f"fsdp_cache_flush_warnings=1: {SWITCH}"),
    ({"allow_empty_shards": None}, f"allow_empty_shards=None: {SWITCH}"),
    ({TP: 0}, f"{TP}=0: a layer is on at least one rank. {ONE}"),
    (
        {"context_parallel_degree": False},
        f"context_parallel_degree=False: a sequence is on at least one rank. {ONE}",
    ),
    (
        {"expert_parallel_degree": 1.5},
        f"expert_parallel_degree=1.5: experts are on at least one rank. {ONE}",
    ),
    ({"random_seed": True}, "random_seed=True: a seed is a number. Pass an integer."),
    ({"random_seed": "7"}, "random_seed='7': a seed is a number. Pass an integer."),
    (
        {"context_parallel_degree": 8, "hybrid_shard_degree": 4},
        "context_parallel_degree=8 with hybrid_shard_degree=4: a sequence is split among ranks of"
        " one sharding group. Pass a context_parallel_degree of 1 to 4, or a hybrid_shard_degree"
        " of at least 8.",
    ),
    (
        {"expert_parallel_degree": 2, TP: 4},
        f"expert_parallel_degree=2 with {TP}=4: SMP v2 does not split both experts and tensors."
        " Keep one of them.",
    ),
]
WRONG = [(1, *case) for case in WRONG_V1] + [(2, *case) for case in WRONG_V2]
