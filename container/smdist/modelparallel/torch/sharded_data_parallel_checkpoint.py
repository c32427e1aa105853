# SPDX-License-Identifier: Apache-2.0
"""Whole state dict of a model from a checkpoint that all ranks wrote, under SMP v1's name."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from smdist.modelparallel.torch.checkpoint.atomic_files import partial_folder
from smdist.modelparallel.torch.checkpoint.find_checkpoint import (
    MODEL,
    find_partial,
    read_values,
)
from smdist.modelparallel.torch.checkpoint.team import Team


def get_full_state_dict_from_sharded_data_parallel_checkpoint(
    checkpoint_dir: str | Path,
    dtype: torch.dtype = torch.float32,
    tag: str | None = None,
    remove_smp_prefix: bool = True,  # noqa: ARG001  names have no prefix
) -> dict[str, Tensor]:
    """Read the whole model from a partial checkpoint, in this process alone.

    The checkpoint may be of any number of ranks, stages, shards and parts of tensors. The process
    needs memory for the whole model.

    Args:
        checkpoint_dir: Folder that was passed to `smp.save_checkpoint(..., partial=True)`.
        dtype: Type of all tensors of floating-point numbers in the result.
        tag: Name of the checkpoint; None for the newest whole one.
        remove_smp_prefix: No effect: names are always those of the model.

    Returns:
        Tensors by their names in the model, on the CPU. Names of a tied parameter share one tensor.

    Raises:
        NoCheckpointError: There is no checkpoint.
        CheckpointError: A file is missing or corrupt.
    """
    source = find_partial(Path(checkpoint_dir), tag, Team(), allow_pickle=False)
    assert source.metadata is not None
    entries = [each for each in source.manifest.entries if each.shape is not None]
    into = {
        f"{MODEL}{each.name}": torch.empty(each.shape or (), dtype=getattr(torch, each.dtype))
        for each in entries
    }
    folder = partial_folder(source.path, source.tag)
    found = read_values(folder, source.metadata, into, allow_pickle=False)
    state: dict[str, Tensor] = {}
    for each in entries:
        value = found[f"{MODEL}{each.name}"]
        value = value.to(dtype) if value.is_floating_point() else value
        state |= dict.fromkeys((each.name, *each.aliases), value)
    return state
