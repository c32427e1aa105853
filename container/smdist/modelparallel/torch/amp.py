# SPDX-License-Identifier: Apache-2.0
"""Mixed precision under SMP's name `smp.amp`: a gradient scaler on which all ranks agree."""

from smdist.modelparallel.torch.replicas.grad_scaler import GradScaler

__all__ = ["GradScaler"]
