# SPDX-License-Identifier: Apache-2.0
"""Files with one object of each rank of a pipeline: `smp.save` and `smp.load`.

The file of pipeline rank 1 is `<f>_1`. With tensor parallelism it is `<f>_1_0`, where 0 is the
tensor-parallel rank. A file contains the object of one rank, and can be loaded only with the same
number of ranks and the same degrees. Checkpoints of `save_checkpoint` have no such limit.
"""

from __future__ import annotations

import pickle
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint.atomic_files import replace_file
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words
from smdist.modelparallel.torch.checkpoint.safe_content import (
    is_readable,
    pickled_error,
    raise_unsafe,
    safe_classes,
)


def save(
    obj: Any,
    f: str | PathLike[str],
    partial: bool = True,
    pickle_module: ModuleType = pickle,
    pickle_protocol: int = 2,
    *,
    allow_pickle: bool = False,
) -> None:
    """Save an object of this rank to a file named after `f` and the rank's number in the pipeline.

    With tensor parallelism, the file name also has the tensor-parallel rank. Ranks need not call
    this at the same time. Only ranks of the first replica write; other ranks do nothing.

    Args:
        obj: Tensors, numbers, strings, NumPy arrays, dates, paths, and containers of them.
        f: Path of the file, without the rank's number.
        partial: False writes a single file, with the path `f` itself: rank 0 of the world writes
            its object, and other ranks write nothing.
        pickle_module, pickle_protocol: As for `torch.save`. Another module than pickle needs
            allow_pickle=True.
        allow_pickle: True saves an object of any class that can be pickled. Such a file can only be
            loaded with allow_pickle=True.

    Raises:
        CheckpointError: The file cannot be written; an older file is unchanged.
        OptionError: `smp.init` was not called, or the object cannot be saved without
            allow_pickle=True; the error names each part that cannot.
    """
    groups = session.current().groups
    writes = groups.rdp_rank == 0 if partial else groups.rank == 0
    if not writes:
        return
    path = _name(f, partial)

    _check_module(pickle_module, allow_pickle=allow_pickle)

    def write(stream: Any) -> None:
        torch.save(obj, stream, pickle_module=pickle_module, pickle_protocol=pickle_protocol)
        stream.flush()
        if not allow_pickle and not is_readable(stream.name):
            raise_unsafe(("obj",), obj)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
    except OptionError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be written",
            in_words(error),
            "Free space, save to another path, or leave out objects that cannot be pickled",
        ) from error


def load(
    f: str | PathLike[str],
    map_location: Any = None,
    pickle_module: ModuleType = pickle,
    pickle_load_args: dict[str, Any] | None = None,
    partial: bool = True,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return the object that `save` wrote for this rank's number in the pipeline.

    Args:
        f: Path of the file, without the rank's number.
        map_location: As for `torch.load`.
        pickle_module: As for `torch.load`. Another module than pickle needs allow_pickle=True.
        pickle_load_args: Further keyword arguments for `torch.load`.
        partial: True reads the file of this rank; False reads the single file of rank 0.
        allow_pickle: True loads an object of any class. Unpickling it can run code: use it only for
            files whose writer you trust.

    Raises:
        CheckpointError: The file does not exist, or cannot be read.
        OptionError: `smp.init` was not called.
    """
    _check_module(pickle_module, allow_pickle=allow_pickle)
    path, keywords = _name(f, partial), pickle_load_args or {}
    module = {"pickle_module": pickle_module} if allow_pickle else {}
    try:
        with safe_classes():
            return torch.load(
                path,
                map_location=map_location,
                **{"weights_only": not allow_pickle, **module, **keywords},
            )
    except pickle.UnpicklingError as error:
        raise pickled_error(str(path), in_words(error)) from error
    except FileNotFoundError:
        others = sorted(each.name for each in path.parent.glob(f"{Path(f).name}*"))
        raise CheckpointError(
            f"there is no file {str(path)!r}",
            f"its folder has {', '.join(others[:8])}"
            if others
            else "its folder has no file whose name begins like this",
            "Load with the same degrees and the same partial= as when the file was saved",
            about="f",
            kind="missing",
        ) from None
    except Exception as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read",
            in_words(error),
            "Copy the file again, or load an older file",
        ) from error


def _check_module(module: ModuleType, *, allow_pickle: bool) -> None:
    require(
        allow_pickle or module is pickle,
        what=f"pickle_module is {module.__name__}",
        why="it decides which code a file runs when it is read",
        hint="Leave pickle_module out, or pass allow_pickle=True, to smp.save and to smp.load",
        about="pickle_module",
        kind="unsafe",
    )


def _name(f: str | PathLike[str], partial: bool) -> Path:
    path = Path(f)
    if not partial:
        return path
    groups = session.current().groups
    place = f"{groups.pp_rank}" + f"_{groups.tp_rank}" * (groups.tp_size > 1)
    return path.with_name(f"{path.name}_{place}")
