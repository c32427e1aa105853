# SPDX-License-Identifier: Apache-2.0
"""Functions that save and load checkpoints, with SMP's names; all ranks have to call them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from smdist.modelparallel.torch.checkpoint.resuming import Resuming
from smdist.modelparallel.torch.checkpoint.saving import Saving


def save_checkpoint(
    path: str | PathLike[str],
    tag: str | int,
    partial: bool = True,
    model: nn.Module | None = None,
    optimizer: Any = None,
    user_content: Any = None,
    *,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
    scheduler: Any = None,
    data: Any = None,
    allow_pickle: bool = False,
) -> None:
    """Save a checkpoint that can be loaded under any layout; all ranks have to call it.

    A layout is the number of ranks and the parallel degrees. The checkpoint is written completely
    or not at all.

    Args:
        path: Folder to write to: one that all hosts share, or a local one on each host, whose
            files are copied together afterwards.
        tag: Name of the checkpoint in this folder.
        partial: True writes a file on each rank; False gathers all values into one file on rank 0.
        model, optimizer: Objects to save. Default: the last model of smp.DistributedModel (or
            smp.parallelize), and the last smp.DistributedOptimizer.
        user_content: Numbers, strings, tensors, NumPy arrays, dates, paths, and containers of
            them; rank 0's object is saved.
        translate_if_full: Accepted for SMP's scripts, without effect: values are always saved under
            the names in the user's model.
        num_kept_partial_checkpoints: Number of partial checkpoints to keep in `path`, including
            the new one; older ones are removed. None keeps all.
        scheduler: Object with state_dict(); rank 0's state is saved.
        data: Object with state_dict(), such as a data loader. Its state is the position up to
            which this rank's replica has read the training data.

    Raises:
        OptionError: An argument is wrong.
        CheckpointError: A rank cannot write; all ranks raise the same error. Older checkpoints
            are unchanged.
    """
    kept, folder = num_kept_partial_checkpoints, Path(path)
    given = (folder, tag, partial, model, optimizer, user_content)
    Saving(*given, translate_if_full, kept, scheduler, data, allow_pickle).run()


def resume_from_checkpoint(
    path: str | PathLike[str],
    tag: str | int | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    *,
    translate_function: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    data: Any = None,
    allow_pickle: bool = False,
) -> Any:
    """Load a checkpoint that was saved under any layout; all ranks have to call it.

    A layout is the number of ranks and the parallel degrees.

    If the model is not split yet, its values are loaded when it is split.

    Args:
        path: Folder to which the checkpoint was saved.
        tag: Name of the checkpoint. None loads the newest checkpoint that is whole. If newer ones
            are not, a SkippedCheckpointWarning names them.
        partial: True if each rank has saved a file; False if rank 0 has saved a single file.
        strict: True requires the same names of parameters and buffers in model and checkpoint.
            False ignores names that only the model or only the checkpoint has. Shapes must always
            be equal.
        load_optimizer: False does not load the optimizer's state.
        load_sharded_optimizer_state: False does not load the optimizer's state if the model is
            sharded over replicas.
        translate_function: Function that gets the saved state dict of the model, and returns a
            state dict with the names of the present model; for partial=False only.
        model, optimizer: Objects to load into. Default: the last model of smp.DistributedModel (or
            smp.parallelize), and the last smp.DistributedOptimizer.
        scheduler, data: Objects whose states are restored with load_state_dict(). `data` gets the
            position up to which this rank's replica had read the training data.
        allow_pickle: True loads objects of any class. Unpickling them can run code: use it only for
            checkpoints whose writer you trust.

    Returns:
        The object that was saved as `user_content`.

    Raises:
        NoCheckpointError: No save has ever finished in this folder.
        CheckpointError: No checkpoint can be read; all ranks raise the same error.
    """
    wants = (load_optimizer, load_sharded_optimizer_state)
    given = (translate_function, model, optimizer, scheduler, data)
    return Resuming(Path(path), tag, partial, strict, *wants, *given, allow_pickle).run()
