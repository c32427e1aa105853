# SPDX-License-Identifier: Apache-2.0
"""SMP's functions for checkpoints; all ranks must call them."""

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
) -> None:
    """Save a checkpoint that any layout can load; it exists completely or not at all.

    Args:
        path: A folder: one for all hosts, or one on each host that is copied to a common place.
        tag: Name of the checkpoint in this folder.
        partial: True: each rank writes its own values. False: rank 0 gathers all values into one
            file.
        model, optimizer: The defaults are the script's.
        user_content: Any object that can be pickled; rank 0's is saved.
        translate_if_full: Names are the model's own in either case.
        num_kept_partial_checkpoints: Number of partial checkpoints to keep in `path`; older ones
            are removed.
        scheduler: An object with state_dict(); rank 0's state is saved.
        data: An object with state_dict(): the position of this replica in its data.

    Raises:
        OptionError: An argument is wrong.
        CheckpointError: A rank cannot write; all ranks raise the same error. Older checkpoints
            are not harmed.
    """
    kept, folder = num_kept_partial_checkpoints, Path(path)
    given = (folder, tag, partial, model, optimizer, user_content)
    Saving(*given, translate_if_full, kept, scheduler, data).run()


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
) -> Any:
    """Load a checkpoint that any layout saved; return the user content.

    If the model is not cut yet, its values are loaded when it is cut. Unpickling runs code: load
    only checkpoints that you trust.

    Args:
        path: The folder that the checkpoint was saved to.
        tag: The default is the newest checkpoint, or the next older one if files of that are
            missing.
        partial: The value that the checkpoint was saved with.
        strict: True: model and checkpoint must have the same names. Shapes must always fit.
        load_optimizer, load_sharded_optimizer_state: False: the optimizer's state is not loaded,
            or not loaded if it is sharded.
        translate_function: Translates the names in the model's state of a file (partial=False)
            to the names of this model.
        model, optimizer: The defaults are the script's.
        scheduler, data: Objects whose states are restored; data gets the state of this replica.

    Raises:
        CheckpointError: No checkpoint can be read; all ranks raise the same error.
    """
    wants = (load_optimizer, load_sharded_optimizer_state)
    given = (translate_function, model, optimizer, scheduler, data)
    return Resuming(Path(path), tag, partial, strict, *wants, *given).run()
