# SPDX-License-Identifier: Apache-2.0
"""Facts about a cluster of one instance type for the planner: hosts, ranks, links, devices.

Bandwidths and peak rates come from the manufacturers' data sheets. Latencies are measured by this
project, because no data sheet has them: one message between GPUs by NCCL, and one between processes
by Gloo on one machine.
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

USABLE: Final = 0.9  # share of memory for the model; system, CUDA and NCCL need the rest
_GIB: Final = 2**30
_BYTES_A_GBIT: Final = 1e9 / 8
_GPU_LATENCY: Final = 10e-6
_NETWORK_LATENCY: Final = 30e-6
_CPU_LATENCY: Final = 200e-6  # measured: Gloo sends 1 KiB in 0.2 to 0.4 ms
_CPU_BYTES_PER_SECOND: Final = 2e9  # measured: Gloo sends 4 MiB in 2.1 to 2.5 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """Latency and bandwidth of the connection from one rank to another, in one direction.

    Attributes:
        latency_seconds: Time that a small message takes, in seconds.
        bytes_per_second: Bandwidth, in bytes per second.
    """

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Device of one rank.

    Attributes:
        name: Name of the device, such as "cpu".
        memory_bytes: Memory that is available for the model.
        flops_per_second: Peak rate of computation, or None if unknown.
        bytes_per_second: Bandwidth of the device's memory, or None if unknown.
    """

    name: str
    memory_bytes: int
    flops_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Hosts, links and devices over which the planner splits a model.

    Attributes:
        num_hosts: Number of hosts.
        ranks_per_host: Number of ranks on each host.
        inside: Link between two ranks of one host.
        across: Link between two ranks of different hosts, when all ranks send at once.
        device: Device of each rank.
    """

    num_hosts: int
    ranks_per_host: int
    inside: LinkFacts
    across: LinkFacts
    device: DeviceFacts

    def document(self) -> dict[str, Any]:
        """Return the dict whose JSON is the value of the planner's option --cluster."""
        return asdict(self)


def cluster_of(name: str, *, num_hosts: int, ranks_per_host: int | None = None) -> ClusterFacts:
    """Return the facts about a cluster of `num_hosts` hosts of one instance type.

    `name` is the instance type, such as "ml.p4d.24xlarge". `ranks_per_host` is by default the
    number of GPUs, or 1 without GPUs.

    Raises:
        OptionError: The type does not exist, has accelerators other than GPUs, or has fewer GPUs
            than ranks.
    """
    if name == LOCAL_PROCESS or name in LOCAL:
        return _this_machine(name, num_hosts, ranks_per_host)
    instance = training_instances().get(name)
    if instance is None:
        raise OptionError(
            f"--instance-type is {name!r}",
            "SageMaker training has no such instance type",
            _type_hint(name),
            about="instance_type",
            kind="unknown",
        )
    if instance.is_neuron:
        raise OptionError(
            f"--instance-type is {name!r}",
            f"it has {instance.accelerator} accelerators, and the sagemaker-dist image has no"
            " Neuron SDK",
            "Use a type with GPUs, or one without accelerators",
            about="instance_type",
            kind="unsupported",
        )
    if instance.has_gpu:
        return _of_gpus(instance, num_hosts, ranks_per_host)
    return _of_cpus(instance, num_hosts, ranks_per_host or 1)


def describe_cluster(cluster: ClusterFacts) -> str:
    """Return one line of text about the cluster: hosts, ranks, memory, peak rate and bandwidths."""
    device, ranks = cluster.device, cluster.ranks_per_host
    facts = [f"{device.memory_bytes / _GIB:.4g} GiB for a rank"]
    if device.flops_per_second is not None:
        facts.append(f"{device.flops_per_second / 1e12:.4g} TFLOP/s at its peak")
    if ranks > 1:
        facts.append(f"{cluster.inside.bytes_per_second / 1e9:.3g} GB/s inside a host")
    if cluster.num_hosts > 1:
        facts.append(f"{cluster.across.bytes_per_second / 1e9:.3g} GB/s between hosts for a rank")
    return f"{cluster.num_hosts} x {ranks} {device.name}: {', '.join(facts)}"


def _type_hint(name: str) -> str:
    hint = closest(name, [*training_instances(), LOCAL_PROCESS])
    return hint if len(hint) <= 200 else "Run sagemaker-dist instances list to see all"


def _of_gpus(instance: Instance, num_hosts: int, requested: int | None) -> ClusterFacts:
    ranks = requested or instance.num_accelerators
    if ranks > instance.num_accelerators:
        raise OptionError(
            f"--ranks-per-host is {ranks}",
            f"{instance.name} has {instance.num_accelerators} GPUs, and NCCL refuses ranks that"
            " share one",
            f"Pass at most {instance.num_accelerators}, or leave it out",
            about="ranks_per_host",
        )
    memory = instance.accelerator_memory_gib
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


def _this_machine(name: str, num_hosts: int, requested: int | None) -> ClusterFacts:
    if name == "local_gpu":
        raise OptionError(
            "--instance-type is 'local_gpu'",
            "this command cannot see which GPUs this machine has",
            "Name a type with the same GPUs, such as ml.p4d.24xlarge",
            about="instance_type",
        )
    ranks = requested or 1
    memory = psutil.virtual_memory().total / (num_hosts * ranks)
    return ClusterFacts(
        num_hosts=num_hosts,
        ranks_per_host=ranks,
        inside=_processes(),
        across=_processes(),
        device=_cpu(memory),
    )


def _inside(known: Accelerator | None) -> LinkFacts:
    """Return the link between two ranks of one host with GPUs.

    `known` has facts about the host's GPUs. If `known` is None, the result is PCIe 3.0, which all
    GPU hosts have.
    """
    rate = known.link_bytes_per_second if known else 16e9
    return LinkFacts(latency_seconds=_GPU_LATENCY, bytes_per_second=rate)


def _network(instance: Instance, ranks: int, latency: float) -> LinkFacts:
    """Return the link of one rank to the ranks of other hosts.

    The bandwidth of the link is the host's sustained bandwidth divided by the number of ranks on
    the host, `ranks`, because all of them send at once. `latency` is in seconds.
    """
    rate = instance.network_sustained_gbps or instance.network_gbps
    assert rate is not None, "the catalogue is complete for networks"
    share = rate * _BYTES_A_GBIT / ranks
    return LinkFacts(latency_seconds=latency, bytes_per_second=share)


def _processes() -> LinkFacts:
    return LinkFacts(latency_seconds=_CPU_LATENCY, bytes_per_second=_CPU_BYTES_PER_SECOND)


def _cpu(memory_bytes: float) -> DeviceFacts:
    return DeviceFacts(name="cpu", memory_bytes=int(memory_bytes * USABLE))
