# SPDX-License-Identifier: Apache-2.0
"""How much memory a step needs for a moment, as the device's allocator saw it."""

from __future__ import annotations

import torch

from smdist.modelparallel.torch.measure.account import Account
from smdist.modelparallel.torch.measure.trial import Trial


def workspace_bytes(trial: Trial, found: Account, device: torch.device) -> int:
    """Beyond what is kept: CUDA's allocator knows; elsewhere it is what the account saw.

    Args:
        trial: With the stand-ins in place; has run once.
        found: Its account.
        device: Where it runs.
    """
    if device.type != "cuda":
        return found.workspace_bytes
    new = {out.storage: out.num_bytes for out in found.outputs if out.input is None and out.is_kept}
    kept = found.hidden_bytes + sum(new.values())
    run = trial.prepared()
    before = _reset(device)
    run.forward()
    forward = torch.cuda.max_memory_allocated(device) - before - kept
    if not run.seed():
        return max(forward, 0)
    before = _reset(device)
    run.backward()
    return max(forward, torch.cuda.max_memory_allocated(device) - before, 0)


def _reset(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
