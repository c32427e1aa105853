# SPDX-License-Identifier: Apache-2.0
"""Reading of a file in Keras's format into a split model, under any layout.

Keras reads the values of the model one by one, and those of other stages are dropped at once. Of
the optimizer's state each rank reads what its own stages need.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import h5py  # type: ignore[import-untyped]
import keras

from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.tensorflow.keras_capture import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_checkpoint.archive_member import opened_member
from smdist.modelparallel.tensorflow.keras_checkpoint.checkpoint_error import KerasCheckpointError
from smdist.modelparallel.tensorflow.keras_checkpoint.optimizer_slots import (
    shared_variables,
    whole_optimizer,
)
from smdist.modelparallel.tensorflow.keras_checkpoint.write_keras_file import (
    MEMBER,
    SavedState,
    seed_states,
    without_compilation,
)
from smdist.modelparallel.tensorflow.keras_stages.variable_values import ReleasedValue, released

_WEIGHTS: Final = "model.weights.h5"  # member of a .keras archive
_SLOTS: Final = "optimizer/vars"  # group in that member


@automatic_names_kept()
def load(state: SavedState, path: str | os.PathLike[str]) -> int:
    """Read a .keras or .weights.h5 file into a split model; all ranks must call this.

    A .keras file of a model that was trained also has the optimizer's state and random states.

    Returns:
        Number of epochs that were finished when the file was written; 0 if the file does not say.

    Raises:
        KerasCheckpointError: The file is missing, damaged, or of another model; raised on every
            rank.
    """
    place, fault, epoch = Path(path), None, 0
    try:
        epoch = _load(state, place)
    except Exception as error:  # any error, since other ranks wait for this one
        fault = KerasCheckpointError(
            f"{place} cannot be loaded into {type(state.split.model).__name__}",
            f"{type(error).__name__}: {error}",
            "Pass a file that was saved from the same model, and that is complete",
            about="path",
            kind="missing_file" if isinstance(error, FileNotFoundError) else "unreadable",
        )
    for other in allgather_object(fault):
        if other is not None:
            raise other
    return epoch


def epoch_of(path: str | os.PathLike[str]) -> int:
    """Return the number of epochs that were finished when a file was written; 0 if unknown.

    Raises:
        KerasCheckpointError: The file does not exist, or is no .keras or .weights.h5 file.
    """
    place = Path(path)
    if not place.exists():
        raise KerasCheckpointError(
            f"{place} cannot be loaded", "it does not exist", "Pass a file that was saved",
            about="path", kind="missing_file",
        )  # fmt: skip
    if place.suffix != ".keras":
        return 0
    if not zipfile.is_zipfile(place):
        raise KerasCheckpointError(
            f"{place} cannot be loaded", "it is no complete .keras file",
            "Pass a file that was saved", about="path", kind="unreadable",
        )  # fmt: skip
    with zipfile.ZipFile(place) as archive:
        names = archive.namelist()
        return int(json.loads(archive.read(MEMBER))["epoch"]) if MEMBER in names else 0


def _load(state: SavedState, path: Path) -> int:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with without_compilation(state.split.model), _taking(state):
        keras.Model.load_weights(state.split.model, path)
    if path.suffix != ".keras":
        return 0
    if state.optimizer is not None:
        with opened_member(path, _WEIGHTS) as member, h5py.File(member) as file:
            _load_optimizer(state, file)
    with zipfile.ZipFile(path) as archive:
        if MEMBER not in archive.namelist():
            return 0
        document = json.loads(archive.read(MEMBER))
    _load_seeds(state, document["seeds"])
    return int(document["epoch"])


@contextmanager
def _taking(state: SavedState) -> Iterator[None]:
    """Let variables of other ranks drop the values that Keras assigns to them."""
    places = [value for _, _, value in released(state.split)]
    for each in places:
        each.takes = True
    try:
        yield
    finally:
        for each in places:
            each.takes = False


def _load_optimizer(state: SavedState, file: Any) -> None:
    """Load the values of this rank's slots, and the numbers that all ranks share."""
    if _SLOTS not in file or not file[_SLOTS]:
        return
    stored = file[_SLOTS]
    whole, slots = whole_optimizer(state.optimizer, state.split.trained)
    if len(stored) != len(whole.variables):
        raise ValueError(
            f"it has {len(stored)} variables of an optimizer, and {state.optimizer.name!r} has"
            f" {len(whole.variables)}"
        )
    at = {id(each): str(number) for number, each in enumerate(whole.variables)}
    where = {(id(slot.owner), slot.name): at[id(slot.variable)] for slot in slots}
    for slot in state.slots:
        slot.variable.assign(stored[where[id(slot.owner), slot.name]][()])
    here = shared_variables(state.optimizer, state.slots)
    for mine, theirs in zip(here, shared_variables(whole, slots), strict=True):
        mine.assign(stored[at[id(theirs)]][()])


def _load_seeds(state: SavedState, seeds: dict[str, Any]) -> None:
    names = state.split.program.variable_names
    for each in seed_states(state.split.model):
        value = seeds.get(names[id(each)])
        if value is not None and not isinstance(each._value, ReleasedValue):
            each.assign(value)
