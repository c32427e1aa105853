# SPDX-License-Identifier: Apache-2.0
"""What this rank does not run leaves its memory."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.residence.tensors import entries, hollow, replace


def release(model: nn.Module, stages: Mapping[int, nn.Module]) -> int:
    """Put tensors without values in place of what no stage holds, in the user's own modules.

    Memory comes back at once unless somebody holds the tensors themselves, as an optimizer does:
    give it its new parameters first, or drop it. The model keeps its names and shapes; what is
    tied stays tied. Buffers go too.

    Args:
        model: The whole model, whose modules the stages share.
        stages: The stages of this rank.

    Returns:
        How many bytes of the model have been let go.
    """
    kept = {id(tensor) for stage in stages.values() for tensor in entries(stage.modules())}
    gone = {id(t): t for t in entries(model.modules()) if id(t) not in kept and not t.is_meta}
    for tensor in gone.values():
        tensor.grad = None
    num_bytes = sum(_storages(gone.values()).values())
    replace(model.modules(), {key: hollow(tensor) for key, tensor in gone.items()})
    gone.clear()
    gc.collect()  # autograd and hooks make cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return num_bytes


def _storages(tensors: object) -> dict[int, int]:
    """Bytes by storage: tensors may be views of one."""
    assert not isinstance(tensors, Tensor)
    return {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in tensors  # type: ignore[attr-defined]
    }
