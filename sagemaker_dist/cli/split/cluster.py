# SPDX-License-Identifier: Apache-2.0
"""An instance type as the planner wants it: hosts, ranks, links, and what a rank computes with.

Speeds are those of the makers' data sheets. Latencies are ours, for nobody states them: what one
message between GPUs takes by NCCL, and what one between processes takes by Gloo on one machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from sagemaker_dist.catalog import (
    LOCAL,
    LOCAL_PROCESS,
    Accelerator,
    Instance,
    accelerator_of,
    training_instances,
)
from sagemaker_dist.errors import OptionError, closest

USABLE: Final = 0.9  # of memory: the rest is the system's or CUDA's, NCCL's buffers, fragments
_GIB: Final = 2**30
_BYTES_A_GBIT: Final = 1e9 / 8
_GPU_LATENCY: Final = 10e-6
_NETWORK_LATENCY: Final = 30e-6
_CPU_LATENCY: Final = 200e-6  # measured: 1 KiB by Gloo, 0.2 to 0.4 ms
_CPU_BYTES_PER_SECOND: Final = 2e9  # measured: 4 MiB by Gloo, 2.1 to 2.5 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """What joins two ranks, one way."""

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a rank computes with; what nobody said is None."""

    name: str
    memory_bytes: int
    flops_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the planner plans for; `document` is what its --cluster reads."""

    num_hosts: int
    ranks_per_host: int
    inside: LinkFacts
    across: LinkFacts
    device: DeviceFacts

    def document(self) -> dict[str, Any]:
        """For --cluster."""
        return asdict(self)


def cluster_of(name: str, *, num_hosts: int, ranks_per_host: int | None = None) -> ClusterFacts:
    """The hosts of one instance type; ranks are one a GPU where nobody says otherwise, else one.

    Raises:
        OptionError: There is no such type, its accelerators are no GPUs, or ranks share them.
    """
    if name == LOCAL_PROCESS or name in LOCAL:
        return _this_machine(name, num_hosts, ranks_per_host)
    instance = training_instances().get(name)
    if instance is None:
        raise OptionError(
            f"--instance-type is {name!r}",
            "SageMaker training has no such instance type",
            _meant(name),
        )
    if instance.is_neuron:
        raise OptionError(
            f"--instance-type is {name!r}",
            f"it has {instance.accelerator} accelerators, and our image has no Neuron SDK",
            "Use a type with GPUs, or one without accelerators",
        )
    if instance.has_gpu:
        return _of_gpus(instance, num_hosts, ranks_per_host)
    return _of_cpus(instance, num_hosts, ranks_per_host or 1)


def in_words(cluster: ClusterFacts) -> str:
    """The same in one sentence."""
    device, ranks = cluster.device, cluster.ranks_per_host
    ways = [f"{device.memory_bytes / _GIB:.4g} GiB for a rank"]
    if device.flops_per_second is not None:
        ways.append(f"{device.flops_per_second / 1e12:.4g} TFLOP/s at its peak")
    if ranks > 1:
        ways.append(f"{cluster.inside.bytes_per_second / 1e9:.3g} GB/s inside a host")
    if cluster.num_hosts > 1:
        ways.append(f"{cluster.across.bytes_per_second / 1e9:.3g} GB/s between hosts for a rank")
    return f"{cluster.num_hosts} x {ranks} {device.name}: {', '.join(ways)}"


def _meant(name: str) -> str:
    mend = closest(name, [*training_instances(), LOCAL_PROCESS])
    return mend if len(mend) <= 200 else "Run sagemaker-dist instances list to see all"


def _of_gpus(instance: Instance, num_hosts: int, asked: int | None) -> ClusterFacts:
    ranks, memory = asked or instance.num_accelerators, instance.accelerator_memory_gib
    if ranks > instance.num_accelerators:
        raise OptionError(
            f"--ranks-per-host is {ranks}",
            f"{instance.name} has {instance.num_accelerators} GPUs, and NCCL refuses ranks that"
            " share one",
            f"Pass at most {instance.num_accelerators}, or leave it out",
        )
    assert memory is not None, "the catalogue is complete for accelerated types"
    known = accelerator_of(instance)
    return ClusterFacts(
        num_hosts=num_hosts,
        ranks_per_host=ranks,
        inside=_inside(known),
        across=_network(instance, ranks, _NETWORK_LATENCY),
        device=DeviceFacts(
            name=f"NVIDIA {instance.accelerator}",
            memory_bytes=int(memory * USABLE * _GIB),
            flops_per_second=known.flops_per_second if known else None,
            bytes_per_second=known.bytes_per_second if known else None,
        ),
    )


def _of_cpus(instance: Instance, num_hosts: int, ranks: int) -> ClusterFacts:
    assert instance.memory_gib is not None, "the catalogue is complete for hosts"
    return ClusterFacts(
        num_hosts=num_hosts,
        ranks_per_host=ranks,
        inside=_processes(),
        across=_network(instance, ranks, _CPU_LATENCY),
        device=_cpu(instance.memory_gib * _GIB / ranks),
    )


def _this_machine(name: str, num_hosts: int, asked: int | None) -> ClusterFacts:
    if name == "local_gpu":
        raise OptionError(
            "--instance-type is 'local_gpu'",
            "which GPUs this machine has is not known to the command",
            "Name a type with the same GPUs, such as ml.p4d.24xlarge",
        )
    ranks = asked or 1
    memory = psutil.virtual_memory().total / (num_hosts * ranks)
    return ClusterFacts(
        num_hosts=num_hosts,
        ranks_per_host=ranks,
        inside=_processes(),
        across=_processes(),
        device=_cpu(memory),
    )


def _inside(known: Accelerator | None) -> LinkFacts:
    """Over the link of a known GPU; else as fast as PCIe 3.0, which all of them have."""
    rate = known.link_bytes_per_second if known else 16e9
    return LinkFacts(latency_seconds=_GPU_LATENCY, bytes_per_second=rate)


def _network(instance: Instance, ranks: int, latency: float) -> LinkFacts:
    """A rank's share of what lasts of the host's network: all ranks of a host send at once."""
    rate = instance.network_sustained_gbps or instance.network_gbps
    assert rate is not None, "the catalogue is complete for networks"
    share = rate * _BYTES_A_GBIT / ranks
    return LinkFacts(latency_seconds=latency, bytes_per_second=share)


def _processes() -> LinkFacts:
    return LinkFacts(latency_seconds=_CPU_LATENCY, bytes_per_second=_CPU_BYTES_PER_SECOND)


def _cpu(memory_bytes: float) -> DeviceFacts:
    return DeviceFacts(name="cpu", memory_bytes=int(memory_bytes * USABLE))
