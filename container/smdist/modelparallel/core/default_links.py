# SPDX-License-Identifier: Apache-2.0
"""Default links between ranks, for clusters whose links are unknown.

The defaults have the speed of the slowest common hardware. So a predicted step is rather too long
than too short.
"""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.cost import Link

# Measured with Gloo on one machine: 1 KiB took 0.2 to 0.4 ms, 4 MiB took 2.1 to 2.5 ms.
PROCESSES: Final = Link(latency_seconds=200e-6, bytes_per_second=2e9)
# Latency of one NCCL message, and PCIe 3.0 with 16 lanes, the slowest link of SageMaker's GPUs.
GPUS: Final = Link(latency_seconds=10e-6, bytes_per_second=16e9)
