# SPDX-License-Identifier: Apache-2.0
"""What an instance type is: facts with units, and what follows from them.

Nothing here knows a name: what a type can do is asked of its facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LOCAL_PROCESS: Final = "local_process"  # this machine, plain processes: ours
LOCAL: Final = frozenset({"local", "local_gpu"})  # this machine, Docker: SageMaker's SDK
_PLATFORMS: Final = {"arm64": "linux/arm64", "x86_64": "linux/amd64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One training instance type. What nobody has said is None.

    Attributes:
        name: As in CreateTrainingJob, such as "ml.p4d.24xlarge".
        accelerator: What it accelerates with, such as "A100".
        accelerator_kind: What programs that accelerator.
        num_accelerators: How many of them.
        num_neuron_cores: Of all its accelerators together; None for GPUs.
        accelerator_memory_gib: Of each accelerator, as EC2 counts it: 22.4 for
            a card that is sold as one of 24 GB.
        accelerator_link: What accelerators of one host reach each other by;
            None also where there is one or none.
        num_vcpus: Of the host.
        memory_gib: Of the host.
        network_gbps: Gbit/s, of all network cards together, at best.
        network_sustained_gbps: Gbit/s that last. It is less where AWS says
            "up to": the rest is for bursts of minutes.
        num_efa: Most EFA interfaces; 0 where there is no EFA.
        architecture: What images for it must be built for.
        sources: Who says so, with dates.
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
        """The name without "ml." and size, such as "p4d"."""
        return self.name.removeprefix("ml.").partition(".")[0]

    @property
    def is_accelerated(self) -> bool:
        """Whether it has accelerators of any kind."""
        return self.num_accelerators > 0

    @property
    def has_gpu(self) -> bool:
        """Whether its accelerators are GPUs."""
        return self.accelerator_kind == "gpu"

    @property
    def is_neuron(self) -> bool:
        """Whether its accelerators are AWS's own, which need the Neuron SDK."""
        return self.accelerator_kind == "neuron"

    @property
    def has_fast_link(self) -> bool:
        """Whether its accelerators reach each other past PCIe."""
        return self.accelerator_link in ("NVLink", "NeuronLink")

    @property
    def supports_efa(self) -> bool:
        """Whether it is known to have EFA."""
        return bool(self.num_efa)

    @property
    def platform(self) -> str | None:
        """What Docker calls its architecture."""
        return _PLATFORMS.get(self.architecture or "")

    @property
    def total_accelerator_memory_gib(self) -> float | None:
        """Of all its accelerators together."""
        if self.accelerator_memory_gib is None:
            return None
        return self.num_accelerators * self.accelerator_memory_gib
