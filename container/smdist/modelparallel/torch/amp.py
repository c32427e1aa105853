# SPDX-License-Identifier: Apache-2.0
"""`smp.amp`, as SMP has it: what mixed precision needs of all ranks."""

from smdist.modelparallel.torch.replicas.scaler import GradScaler

__all__ = ["GradScaler"]
