# SPDX-License-Identifier: Apache-2.0
"""Gradient scaler for mixed precision, under SMP's name `smp.amp.GradScaler`."""

from smdist.modelparallel.torch.replicas.grad_scaler import GradScaler

__all__ = ["GradScaler"]
