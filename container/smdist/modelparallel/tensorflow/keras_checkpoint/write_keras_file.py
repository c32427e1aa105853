# SPDX-License-Identifier: Apache-2.0
"""Writing of a split model to one file in Keras's format, which Keras alone can load.

Rank 0 lets Keras write the whole model. Where Keras reads a variable of another stage, the value
comes from the rank that holds it. The file appears under its name when it is complete.
"""

from __future__ import annotations

import glob
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np

from smdist.dataparallel.tensorflow.broadcast_objects import broadcast_object
from smdist.modelparallel.tensorflow.keras_capture import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import all_variables
from smdist.modelparallel.tensorflow.keras_checkpoint.checkpoint_error import KerasCheckpointError
from smdist.modelparallel.tensorflow.keras_checkpoint.optimizer_slots import (
    OptimizerSlot,
    shared_variables,
    whole_optimizer,
)
from smdist.modelparallel.tensorflow.keras_checkpoint.value_transfer import (
    Fetcher,
    RemoteValue,
    serve,
)
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel
from smdist.modelparallel.tensorflow.keras_stages.variable_values import (
    ReleasedValue,
    ranks_of,
)

_LEFT_SECONDS: Final = 3600.0  # age of an unfinished file that nobody writes any more
MEMBER: Final = "smdist.json"  # member of a .keras archive that Keras does not read


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Content of a file: a split model with its optimizer, or the weights alone.

    Attributes:
        split: The split model.
        optimizer: Optimizer of this rank; None to write no optimizer state.
        slots: Slots of this rank's optimizer.
        compile: Arguments of compile() other than the optimizer.
        epoch: Number of epochs that are finished.
    """

    split: SplitKerasModel
    optimizer: Any = None
    slots: tuple[OptimizerSlot, ...] = ()
    compile: dict[str, Any] | None = None
    epoch: int = 0


@automatic_names_kept()
def save(state: SavedState, path: str | os.PathLike[str]) -> None:
    """Write a .keras file with model, optimizer state and epoch; all ranks must call this.

    Raises:
        KerasCheckpointError: The file cannot be written, or its name does not end with ".keras";
            raised on every rank.
    """
    _written(state, Path(path), ".keras", _write_archive)


@automatic_names_kept()
def save_weights(state: SavedState, path: str | os.PathLike[str]) -> None:
    """Write a .weights.h5 file with the model's variables; all ranks must call this.

    Raises:
        KerasCheckpointError: The file cannot be written, or its name does not end with
            ".weights.h5"; raised on every rank.
    """
    _written(state, Path(path), ".weights.h5", _write_weights)


def _written(
    state: SavedState, path: Path, ending: str, write: Callable[[SavedState, Any, Path], None]
) -> None:
    if not path.name.endswith(ending):
        raise KerasCheckpointError(
            f"the file is {str(path)!r}",
            f"Keras requires that its name ends with {ending!r}",
            f"Pass a name that ends with {ending!r}",
            about="path",
        )

    def replace(whole: WholeState) -> None:
        with _replacing(path, ending) as unfinished:
            write(state, whole, unfinished)

    on_first_rank(state, path, replace)


def on_first_rank(state: SavedState, path: Path, write: Callable[[WholeState], None]) -> None:
    """Call a function on rank 0 that may read all values of the model; all ranks must call this.

    Args:
        state: Content to write.
        path: File or folder that the function writes, for errors.
        write: Function that takes the state of the whole model.

    Raises:
        KerasCheckpointError: The function failed; raised on every rank.
    """
    fault: KerasCheckpointError | None = None
    whole = WholeState(state)
    if state.split.session.rank == 0:
        try:
            with without_compilation(state.split.model), whole.in_place():
                write(whole)
        except Exception as error:  # any error, since other ranks wait for rank 0
            fault = KerasCheckpointError(
                f"{path} cannot be written", f"{type(error).__name__}: {error}",
                "Pass a path in a writable folder with enough space", about="path",
                kind="unwritable",
            )  # fmt: skip
        whole.fetcher.drain()
    else:
        serve(whole.own)
    fault = broadcast_object(fault)
    if fault is not None:
        raise fault


@contextmanager
def without_compilation(model: Any) -> Iterator[None]:
    """Hide what compile() set from Keras, which would save or load it as part of the model.

    A subclass of smp.DistributedModel is compiled itself, with an optimizer for its own stages.
    """
    before = dict(vars(model))
    vars(model).update(compiled=False, optimizer=None)
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(before)


@contextmanager
def _replacing(path: Path, ending: str) -> Iterator[Path]:
    """Yield a file in the same folder that takes the place of `path` if no error occurs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in path.parent.glob(f".{glob.escape(path.name)}.????????{ending}"):
        if time.time() - each.stat().st_mtime > _LEFT_SECONDS:  # left by a writer that was killed
            each.unlink(missing_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ending)
    os.close(number)
    unfinished = Path(name)
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.chmod(0o644)
        unfinished.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # otherwise the new name may be lost with the machine's power
        finally:
            os.close(folder)
    finally:
        unfinished.unlink(missing_ok=True)


class WholeState:
    """Values of the whole checkpoint: those that rank 0 has, and those that it receives.

    Args:
        state: Content of the checkpoint, the same on all ranks.
    """

    def __init__(self, state: SavedState) -> None:
        self.state = state
        self.optimizer: Any = None
        self.whole_slots: list[OptimizerSlot] = []
        if state.optimizer is not None:
            trained = state.split.trained
            self.optimizer, self.whole_slots = whole_optimizer(state.optimizer, trained)
        self.own: dict[int, Any] = {}
        self._remote: list[tuple[RemoteValue, Any]] = []
        self._collect()
        keeps = hasattr(state.optimizer, "inner_optimizer")  # Keras writes its slots twice
        self.fetcher = Fetcher([value for value, _ in self._remote], keeps=keeps)

    @property
    def absent(self) -> list[Any]:
        """Variables whose values rank 0 receives while it writes."""
        return [variable for _, variable in self._remote]

    def _collect(self) -> None:
        split, session = self.state.split, self.state.split.session
        held = {id(each) for each in split.own_variables()}
        mine = {(id(slot.owner), slot.name): slot.variable for slot in self.state.slots}
        model = [(each, each, each.value) for each in all_variables(split.model)]
        slots = [
            (slot.owner, slot.variable, mine.get((id(slot.owner), slot.name)))
            for slot in self.whole_slots
        ]
        self._local_slots = [(variable, value) for _, variable, value in slots if value is not None]
        for number, (owner, variable, value) in enumerate([*model, *slots]):
            home = ranks_of(split, owner, 0)[0]
            if home == session.rank:
                self.own[number] = value if variable is owner else value.value
            elif session.rank == 0 and id(owner) not in held:
                self._receive_later(number, variable, home)
        if self.optimizer is not None:
            self._collect_shared(len(model) + len(slots))
        if session.rank == 0:
            self.own.clear()

    def _collect_shared(self, first: int) -> None:
        """Collect the optimizer's numbers, such as its iterations, of a rank that updates with it.

        Args:
            first: Number of the first of them in the checkpoint.
        """
        split, rank = self.state.split, self.state.split.session.rank
        updating = {each for variable in split.trained for each in ranks_of(split, variable, 0)}
        home = min(updating, default=0)  # 0 if rank 0 trains any variable
        here = shared_variables(self.state.optimizer, self.state.slots)
        there = shared_variables(self.optimizer, self.whole_slots)
        for number, (variable, value) in enumerate(zip(there, here, strict=True), first):
            if home == rank == 0:
                self._local_slots.append((variable, value))
            elif home == rank:
                self.own[number] = value.value
            elif rank == 0:
                self._receive_later(number, variable, home)

    def _receive_later(self, number: int, variable: Any, home: int) -> None:
        remote = RemoteValue(number, home, tuple(variable.shape), str(variable.dtype))
        self._remote.append((remote, variable))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put all values in place on rank 0, so that Keras can read them."""
        for remote, variable in self._remote:
            if not isinstance(variable._value, ReleasedValue):
                name = f"{variable.path}"
                variable._value = ReleasedValue(variable, name, remote.rank)
            variable._value.fetch = self.fetcher.function(remote.number)
        for variable, value in self._local_slots:
            variable._value = value.value
        try:
            yield
        finally:
            for _, variable in self._remote:
                variable._value.fetch = None


def _write_weights(state: SavedState, whole: Any, path: Path) -> None:  # noqa: ARG001  see _written
    keras.Model.save_weights(state.split.model, path)


def _write_archive(state: SavedState, whole: Any, path: Path) -> None:
    model = state.split.model
    if whole.optimizer is not None:
        keras.Model.compile(model, optimizer=whole.optimizer, **(state.compile or {}))
    keras.Model.save(model, path)
    seeds = {
        state.split.program.variable_names[id(each)]: np.asarray(each._value).tolist()
        for each in seed_states(model)
    }
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(MEMBER, json.dumps({"epoch": state.epoch, "seeds": seeds}))


def seed_states(model: Any) -> list[Any]:
    """Return the states of all random generators of a model."""
    return [
        generator.state
        for layer in model._flatten_layers(include_self=True, recursive=True)
        for generator in layer._seed_generators
    ]
