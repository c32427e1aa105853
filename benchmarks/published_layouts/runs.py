# SPDX-License-Identifier: Apache-2.0
"""Published trainings: model, machines, layout and throughput, each with its source and date.

Every second run of each source is held out: no figure of the cost model was chosen while looking at
it. Runs with float8, context parallelism or asynchronous tensor parallelism are left out, since the
runtime has none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.layout import Layout, TransformerConfig

MEGATRON: Final = (
    "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using"
    " Megatron-LM, arXiv 2104.04473v5, 2021-08-23, table 1"
)
TITAN_A100: Final = "pytorch/torchtitan eaea6f6a, docs/performance.md, Llama 3 on 64 A100"
TITAN_H100: Final = (
    "pytorch/torchtitan 31a17bfd, benchmarks/llama3_h100_202412_torchtitan.md, 2024-12-26"
)
AWS: Final = "AWS's reference configurations of SMP v1 and v2, no throughput published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published training.

    Attributes:
        name: Name of the row.
        source: Where it was published, with date.
        config: The model.
        machine: "A100 80 GB", "A100 40 GB" or "H100 96 GB", hosts of 8.
        layout: Layout as it was run.
        tokens_per_second: Published tokens per second of one accelerator; None if not published.
        is_held_out: True if no figure was chosen while looking at this row.
    """

    name: str
    source: str
    config: TransformerConfig
    machine: str
    layout: Layout
    tokens_per_second: float | None
    is_held_out: bool


def _gpt(
    name: str, heads: int, hidden: int, layers: int, sequence: int = 2048
) -> TransformerConfig:
    return TransformerConfig(
        name=name, num_layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden,
        vocabulary=51200, sequence=sequence, is_gated=False, is_tied=True, is_fused=False,
        is_compiled=True,  # Megatron-LM and SMP have fused kernels of their own
    )  # fmt: skip


def _llama(name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocabulary: int,
           sequence: int) -> TransformerConfig:  # fmt: skip
    return TransformerConfig(
        name=name, num_layers=layers, hidden=hidden, heads=heads, kv_heads=kv, ffn=ffn,
        vocabulary=vocabulary, sequence=sequence,
    )  # fmt: skip


# Billion parameters, heads, hidden, layers, tensor, pipeline, GPUs, batch, TFLOP/s of one GPU.
_MEGATRON: Final = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)


def megatron_flops(config: TransformerConfig) -> float:
    """Return the operations of one sample by the paper's formula (3), recomputation included."""
    c = config
    inner = 1 + c.sequence / (6 * c.hidden) + c.vocabulary / (16 * c.num_layers * c.hidden)
    return 96 * c.sequence * c.num_layers * c.hidden**2 * inner


def _megatron() -> list[Run]:
    runs = []
    for at, row in enumerate(_MEGATRON):
        billions, heads, hidden, layers, tensor, pipeline, gpus, batch, teraflops = row
        data = gpus // (tensor * pipeline)
        config = _gpt(f"GPT {billions} B", heads, hidden, layers)
        runs.append(
            Run(
                name=f"Megatron-LM {billions} B", source=MEGATRON, config=config,
                machine="A100 80 GB",
                layout=Layout(
                    data=data, pipeline=pipeline, tensor=tensor, checkpointing="full",
                    microbatch=1, num_microbatches=batch // data,
                    schedule="interleaved_1f1b" if pipeline > 1 and layers // pipeline >= 2
                    and (batch // data) % pipeline == 0 else "1f1b",
                    virtual_stages=2 if pipeline > 1 and layers // pipeline >= 2
                    and (batch // data) % pipeline == 0 else 1,
                ),
                tokens_per_second=teraflops * 1e12 / megatron_flops(config) * config.sequence,
                is_held_out=at % 2 == 1,
            )
        )  # fmt: skip
    return runs


_LLAMA3_8B: Final = _llama("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256, 8192)
_LLAMA3_70B: Final = _llama("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256, 8192)
_LLAMA2_7B: Final = _llama("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000, 4096)
_LLAMA2_70B: Final = _llama("Llama 2 70B", 80, 8192, 64, 8, 28672, 32000, 4096)
_LLAMA2_175B: Final = _llama("Llama 2 175B", 96, 12288, 96, 96, 32768, 32000, 4096)


def _shards(ranks: int, microbatch: int, kept: str, **more: int | bool) -> Layout:
    tensor = int(more.pop("tensor", 1))
    data = ranks // tensor
    degree = int(more.pop("degree", data))
    return Layout(
        data=data, tensor=tensor, sharding="full", shard_degree=degree, checkpointing=kept,
        microbatch=microbatch, offload=bool(more.pop("offload", False)),
    )  # fmt: skip


RUNS: Final = (
    *_megatron(),
    *(
        Run(name=name, source=source, config=config, machine=machine, layout=layout,
            tokens_per_second=rate, is_held_out=at % 2 == 1)
        for at, (name, source, config, machine, layout, rate) in enumerate((
            ("torchtitan 8B, selective layer", TITAN_A100, _LLAMA3_8B, "A100 80 GB",
             _shards(64, 1, "selective"), 2904.0),
            ("torchtitan 70B, full", TITAN_A100, _LLAMA3_70B, "A100 80 GB",
             _shards(64, 1, "full"), 331.0),
            ("torchtitan 8B on 8", TITAN_H100, _LLAMA3_8B, "H100 96 GB",
             _shards(8, 2, "selective"), 5762.0),
            ("torchtitan 8B on 128", TITAN_H100, _LLAMA3_8B, "H100 96 GB",
             _shards(128, 2, "selective"), 5605.0),
            ("SMP v1 GPT-2 10 B", AWS, _gpt("GPT-2 10 B", 32, 4096, 48, 512), "A100 40 GB",
             Layout(data=32, tensor=4, sharding="optimizer", shard_degree=32,
                    checkpointing="full", microbatch=40), None),
            ("SMP v1 GPT-2 30 B", AWS, _gpt("GPT-2 30 B", 64, 7168, 48, 512), "A100 40 GB",
             Layout(data=16, tensor=8, sharding="optimizer", shard_degree=16,
                    checkpointing="full", microbatch=32), None),
            ("SMP v1 GPT-2 60 B", AWS, _gpt("GPT-2 60 B", 64, 8192, 72, 512), "A100 40 GB",
             Layout(data=16, tensor=8, pipeline=2, sharding="optimizer", shard_degree=16,
                    checkpointing="full", microbatch=14, num_microbatches=4), None),
            ("SMP v2 Llama 2 7 B", AWS, _LLAMA2_7B, "A100 40 GB",
             _shards(8, 4, "full"), None),
            ("SMP v2 Llama 2 70 B", AWS, _LLAMA2_70B, "A100 40 GB",
             _shards(256, 2, "full"), None),
            ("SMP v2 Llama 2 175 B", AWS, _LLAMA2_175B, "A100 40 GB",
             _shards(512, 6, "full", tensor=4, degree=128, offload=True), None),
        ))
    ),
)  # fmt: skip
