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

from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint.atomic_files import replace_file
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words


def save(
    obj: Any,
    f: str | PathLike[str],
    partial: bool = True,
    pickle_module: ModuleType = pickle,
    pickle_protocol: int = 2,
) -> None:
    """Save an object of this rank to a file named after `f` and the rank's number in the pipeline.

    With tensor parallelism, the file name also has the tensor-parallel rank. Ranks need not call
    this at the same time. Only ranks of the first replica write; other ranks do nothing.

    Args:
        obj: The object, as for `torch.save`.
        f: Path of the file, without the rank's number.
        partial: False writes a single file, with the path `f` itself: rank 0 of the world writes
            its object, and other ranks write nothing.
        pickle_module, pickle_protocol: As for `torch.save`.

    Raises:
        CheckpointError: The file cannot be written; an older file is unchanged.
        OptionError: `smp.init` was not called.
    """
    groups = session.current().groups
    writes = groups.rdp_rank == 0 if partial else groups.rank == 0
    if not writes:
        return
    path = _name(f, partial)

    def write(stream: Any) -> None:
        torch.save(obj, stream, pickle_module=pickle_module, pickle_protocol=pickle_protocol)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
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
) -> Any:
    """Return the object that `save` wrote for this rank's number in the pipeline.

    Unpickling runs code: load only files that you trust.

    Args:
        f: Path of the file, without the rank's number.
        map_location, pickle_module: As for `torch.load`.
        pickle_load_args: Further keyword arguments for `torch.load`.
        partial: True reads the file of this rank; False reads the single file of rank 0.

    Raises:
        CheckpointError: The file does not exist, or cannot be read.
        OptionError: `smp.init` was not called.
    """
    path, keywords = _name(f, partial), pickle_load_args or {}
    try:
        return torch.load(
            path,
            map_location=map_location,
            pickle_module=pickle_module,
            **{"weights_only": False, **keywords},
        )
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


def _name(f: str | PathLike[str], partial: bool) -> Path:
    path = Path(f)
    if not partial:
        return path
    groups = session.current().groups
    place = f"{groups.pp_rank}" + f"_{groups.tp_rank}" * (groups.tp_size > 1)
    return path.with_name(f"{path.name}_{place}")
