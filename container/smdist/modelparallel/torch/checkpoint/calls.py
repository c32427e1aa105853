# SPDX-License-Identifier: Apache-2.0
"""SMP's calls for checkpoints: all ranks make them."""

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
    """Save a checkpoint that any layout loads; it is there whole or not at all.

    Args:
        path: A folder: one for all hosts, or one on each that is copied to a common place.
        tag: Its name, in this folder.
        partial: Each rank writes what it has. False: rank 0 gathers all of it into one file.
        model, optimizer: The defaults are the script's.
        user_content: Anything that can be pickled; rank 0's is saved.
        translate_if_full: Names are the model's own either way.
        num_kept_partial_checkpoints: How many partial ones stay in `path`; older ones go.
        scheduler: Has state_dict(); rank 0's is saved.
        data: Has state_dict(): where this replica is in its data.

    Raises:
        OptionError: An argument is wrong.
        CheckpointError: Some rank cannot write: the same on all. No older one is harmed.
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
    """Load a checkpoint, whatever layout saved it; returns the user content.

    Of a model that is not cut yet, values come when it is. Unpickling runs code: load your own.

    Args:
        tag: The default is the newest, or the next older one where files of that are missing.
        partial: As it was saved.
        strict: Whether both must have the same names. Shapes always must fit.
        load_optimizer, load_sharded_optimizer_state: False: not its state, or not if sharded.
        translate_function: Gives the model's state of a file (partial=False) this model's names.
        model, optimizer: The defaults are the script's.
        scheduler, data: Get their states back; data, that of this replica.

    Raises:
        CheckpointError: There is none that can be read: the same on all ranks.
    """
    wants = (load_optimizer, load_sharded_optimizer_state)
    given = (translate_function, model, optimizer, scheduler, data)
    return Resuming(Path(path), tag, partial, strict, *wants, *given).run()
