# SPDX-License-Identifier: Apache-2.0
"""Models and machines of the tests of layouts."""

from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout import Machine, TransformerConfig, transformer

GIB = 1 << 30


def p4d(num_hosts, *, memory_gib=36.0):
    """Hosts of 8 A100 with 40 GB, NVSwitch and 400 Gbit/s, as the catalogue describes them."""
    device = Device(
        name="NVIDIA A100",
        memory_bytes=int(memory_gib * GIB),
        flops_per_second=312e12,
        bytes_per_second=1.555e12,
    )
    cluster = Cluster(
        num_hosts=num_hosts,
        ranks_per_host=8,
        inside=Link(latency_seconds=1e-5, bytes_per_second=300e9),
        across=Link(latency_seconds=3e-5, bytes_per_second=6.25e9),
        device=device,
    )
    return Machine(cluster=cluster)


def llama_7b():
    """Return the layers of Llama 2 7B."""
    config = TransformerConfig(
        name="Llama 7B",
        num_layers=32,
        hidden=4096,
        heads=32,
        kv_heads=32,
        ffn=11008,
        vocabulary=32000,
        sequence=4096,
    )
    return transformer(config)
