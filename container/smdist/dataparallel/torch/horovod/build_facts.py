# SPDX-License-Identifier: Apache-2.0
"""Answer to Horovod's question whether torch was built for CUDA."""

from __future__ import annotations

import torch


def cuda_built() -> bool:
    """Return True if torch was built for CUDA, so that tensors of GPUs can be reduced."""
    return torch.version.cuda is not None
