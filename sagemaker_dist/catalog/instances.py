# SPDX-License-Identifier: Apache-2.0
"""Facts about one instance type, with units.

No code here compares names of types: what a type can do follows from its facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LOCAL_PROCESS: Final = "local_process"  # hosts are processes of this machine (sagemaker-dist only)
LOCAL: Final = frozenset({"local", "local_gpu"})  # hosts are Docker containers; SageMaker's names
_PLATFORMS: Final = {"arm64": "linux/arm64", "x86_64": "linux/amd64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Facts about one training instance type. An unknown fact is None.

    Attributes:
        name: As in CreateTrainingJob, such as "ml.p4d.24xlarge".
        accelerator: Model of its accelerators, such as "A100".
        accelerator_kind: "gpu" (CUDA) or "neuron" (AWS Trainium and Inferentia).
        num_accelerators: Accelerators per host.
        num_neuron_cores: Neuron cores of all accelerators together; None for GPUs.
        accelerator_memory_gib: Memory of each accelerator in GiB, as EC2 counts it: 22.4 for a card
            that is sold as one of 24 GB.
        accelerator_link: Link between the accelerators of one host; None also for hosts with fewer
            than two.
        num_vcpus: vCPUs of the host.
        memory_gib: Memory of the host in GiB.
        network_gbps: Best bandwidth of all network cards together, Gbit/s.
        network_sustained_gbps: Bandwidth that lasts, Gbit/s. It is lower than `network_gbps` for
            types that AWS rates "up to": the rest is for bursts of minutes.
        num_efa: Most EFA interfaces; 0 without EFA.
        architecture: CPU architecture, for which images must be built.
        sources: Sources of these facts, with dates.
    """

    name: str
    accelerator: str | None = None
    accelerator_kind: Literal["gpu", "neuron"] | None = None
    num_accelerators: int = 0
    num_neuron_cores: int | None = None
    accelerator_memory_gib: float | None = None
    accelerator_link: Literal["NVLink", "NeuronLink", "PCIe"] | None = None
    num_vcpus: int | None = None
    memory_gib: float | None = None
    network_gbps: float | None = None
    network_sustained_gbps: float | None = None
    num_efa: int | None = None
    architecture: Literal["arm64", "x86_64"] | None = None
    sources: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Return the name without "ml." and size, such as "p4d"."""
        return self.name.removeprefix("ml.").partition(".")[0]

    @property
    def is_accelerated(self) -> bool:
        """Return whether the type has accelerators of any kind."""
        return self.num_accelerators > 0

    @property
    def has_gpu(self) -> bool:
        """Return whether its accelerators are GPUs."""
        return self.accelerator_kind == "gpu"

    @property
    def is_neuron(self) -> bool:
        """Return whether its accelerators are AWS's own, which need the Neuron SDK."""
        return self.accelerator_kind == "neuron"

    @property
    def has_fast_link(self) -> bool:
        """Return whether its accelerators are joined by a link faster than PCIe."""
        return self.accelerator_link in ("NVLink", "NeuronLink")

    @property
    def supports_efa(self) -> bool:
        """Return whether the type is known to have EFA."""
        return bool(self.num_efa)

    @property
    def platform(self) -> str | None:
        """Return Docker's name of its architecture, such as "linux/amd64", or None."""
        return _PLATFORMS.get(self.architecture or "")

    @property
    def total_accelerator_memory_gib(self) -> float | None:
        """Return the memory of all accelerators of one host in GiB, or None."""
        if self.accelerator_memory_gib is None:
            return None
        return self.num_accelerators * self.accelerator_memory_gib
