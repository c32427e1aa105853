# SPDX-License-Identifier: Apache-2.0
"""Facts about one instance type.

The abilities of a type are derived from its facts, never from its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LOCAL_PROCESS: Final = "local_process"  # emulated hosts are processes; only sagemaker-dist has it
LOCAL: Final = frozenset({"local", "local_gpu"})  # emulated hosts are Docker containers
_PLATFORMS: Final = {"arm64": "linux/arm64", "x86_64": "linux/amd64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Facts about one training instance type. An unknown fact is None.

    Attributes:
        name: Name of the type in CreateTrainingJob, such as "ml.p4d.24xlarge".
        accelerator: Model of the accelerators, such as "A100".
        accelerator_kind: "gpu" (with CUDA) or "neuron" (AWS Trainium and Inferentia).
        num_accelerators: Number of accelerators of one host.
        num_neuron_cores: Number of Neuron cores of all accelerators together; None for GPUs.
        accelerator_memory_gib: Memory of each accelerator in GiB, as EC2 reports it, for example
            22.4 for a GPU that is sold with 24 GB.
        compute_capability: NVIDIA's version of the GPUs' instruction set, such as "8.0" for A100;
            None for other accelerators.
        accelerator_link: Link between the accelerators of one host, such as NVLink; None also if a
            host has fewer than two accelerators.
        num_vcpus: Number of vCPUs of the host.
        memory_gib: Memory of the host in GiB.
        network_gbps: Best bandwidth of all network cards together, in Gbit/s.
        network_sustained_gbps: Bandwidth without time limit, in Gbit/s. For types with bandwidth
            "up to" 10 Gbit/s, for example, this is lower: they reach 10 only for some minutes.
        num_efa: Largest number of EFA interfaces; 0 without EFA.
        architecture: CPU architecture, for which images must be built.
        sources: Sources of these facts, with dates.
    """

    name: str
    accelerator: str | None = None
    accelerator_kind: Literal["gpu", "neuron"] | None = None
    num_accelerators: int = 0
    num_neuron_cores: int | None = None
    accelerator_memory_gib: float | None = None
    compute_capability: str | None = None
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
        """Return the instance family, such as "p4d" of "ml.p4d.24xlarge"."""
        return self.name.removeprefix("ml.").partition(".")[0]

    @property
    def is_accelerated(self) -> bool:
        """Return whether the type has accelerators of any kind."""
        return self.num_accelerators > 0

    @property
    def has_gpu(self) -> bool:
        """Return whether the accelerators of the instance type are GPUs."""
        return self.accelerator_kind == "gpu"

    @property
    def is_neuron(self) -> bool:
        """Return whether the accelerators of the instance type are AWS Trainium or Inferentia.

        Such accelerators need the AWS Neuron SDK.
        """
        return self.accelerator_kind == "neuron"

    @property
    def has_fast_link(self) -> bool:
        """Return whether a link faster than PCIe connects the accelerators of one host."""
        return self.accelerator_link in ("NVLink", "NeuronLink")

    @property
    def supports_efa(self) -> bool:
        """Return whether the type is known to have EFA."""
        return bool(self.num_efa)

    @property
    def platform(self) -> str | None:
        """Return Docker's name of the CPU architecture, such as "linux/amd64"; None if unknown."""
        return _PLATFORMS.get(self.architecture or "")

    @property
    def total_accelerator_memory_gib(self) -> float | None:
        """Return the memory of all accelerators of one host in GiB; None if unknown."""
        if self.accelerator_memory_gib is None:
            return None
        return self.num_accelerators * self.accelerator_memory_gib
