# SPDX-License-Identifier: Apache-2.0
"""Files of one object for each rank of a pipeline: `smp.save` and `smp.load`.

The file of pipeline rank 1 is `<f>_1`, or `<f>_1_0` if tensors are split as well. Such a file holds
this rank's object; only files of `save_checkpoint` can be loaded by other layouts.
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
    """Pickle an object to `f`, with this rank's place in the pipeline appended to the name.

    Not a collective: each rank may call it or not. Only the first replica writes.

    Args:
        obj: The object, as for `torch.save`.
        f: Path of the file, without the rank's place.
        partial: False: rank 0 writes `f` itself, and other ranks write nothing.
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
            "Free space, or save to another path, and save what can be pickled",
        ) from error


def load(
    f: str | PathLike[str],
    map_location: Any = None,
    pickle_module: ModuleType = pickle,
    pickle_load_args: dict[str, Any] | None = None,
    partial: bool = True,
) -> Any:
    """Load the file that `save` wrote for this rank's place in the pipeline.

    Unpickling runs code: load only files that you trust.

    Args:
        f: Path of the file, without the rank's place.
        map_location, pickle_module: As for `torch.load`.
        pickle_load_args: Further keyword arguments for `torch.load`.
        partial: The value that the file was saved with.

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
            f"beside it are {', '.join(others[:8])}" if others else "nothing of that name is there",
            "Load with the degrees and with partial= as they were for saving",
        ) from None
    except Exception as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read", in_words(error), "Copy it again, or load an older one"
        ) from error


def _name(f: str | PathLike[str], partial: bool) -> Path:
    path = Path(f)
    if not partial:
        return path
    groups = session.current().groups
    place = f"{groups.pp_rank}" + f"_{groups.tp_rank}" * (groups.tp_size > 1)
    return path.with_name(f"{path.name}_{place}")
