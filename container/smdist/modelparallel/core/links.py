# SPDX-License-Identifier: Apache-2.0
"""Links for where nobody says what joins ranks: slow ones of their kind, so that plans hold."""

from __future__ import annotations

from typing import Final

from smdist.modelparallel.core.cost import Link

# Measured with Gloo on one machine: 1 KiB in 0.2 to 0.4 ms, 4 MiB in 2.1 to 2.5 ms.
PROCESSES: Final = Link(latency_seconds=200e-6, bytes_per_second=2e9)
# One message of NCCL, over PCIe 3.0 with 16 lanes, which all GPUs of SageMaker have at least.
GPUS: Final = Link(latency_seconds=10e-6, bytes_per_second=16e9)
