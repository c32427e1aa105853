# SPDX-License-Identifier: Apache-2.0
"""Activations of one step in the host's memory: what is saved when, and what is loaded when.

`StepOffload` sees each tensor that autograd saves in a forward action. Tensors of at least
`LEAST_BYTES` are copied to the host at once. What is on the device is decided layer by layer, each
time that the next layer begins, forward or backward:

    - the layer in use, and the layers that the schedule uses next, are wanted
    - a layer that is not wanted leaves the device as soon as its copy is complete, or at once if
      it has been used, or if there is no room for it
    - a wanted layer that is not on the device is loaded

There is room for as many layers as the horizon says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.offload.device_copies import DeviceCopies
from smdist.modelparallel.torch.executor.offload.layer_order import LayerOrder
from smdist.modelparallel.torch.executor.offload.saved_storage import SavedStorage
from smdist.modelparallel.torch.executor.offload.saved_tensors import (
    MovedTensor,
    Place,
    StayingTensor,
    content,
    extent,
)
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.pytree import flatten

LEAST_BYTES: Final = 1 << 16  # smaller tensors stay on the device: a copy costs more than it saves
_StorageKey = tuple[int, int, int, int]  # address of the storage, version, first and last byte


class SavedLayer:
    """Storages that one layer saved in a forward pass.

    The storages are freed by autograd's graph, and not kept alive by this object.
    """

    def __init__(self) -> None:
        self._storages: list[ref[SavedStorage]] = []
        self._held: list[ref[SavedStorage]] = []
        self.is_used = False

    @property
    def is_copied(self) -> bool:
        """True if all copies to the host are complete."""
        return all(each.is_copied for each in _alive(self._storages))

    def add(self, storage: SavedStorage) -> None:
        """Add a storage, and hold it on the device."""
        self._storages.append(ref(storage))
        self._held.append(ref(storage))
        storage.hold()

    def hold(self) -> None:
        """Hold all storages on the device; those that are not there are loaded."""
        self._storages = [ref(each) for each in _alive(self._storages)]
        for each in _alive(self._storages):
            self._held.append(ref(each))
            each.hold()

    def release(self) -> None:
        """End `hold` for all storages."""
        held, self._held = self._held, []
        for each in _alive(held):
            each.release()


def _alive(storages: Iterable[ref[SavedStorage]]) -> Iterator[SavedStorage]:
    return (each for each in (weak() for weak in storages) if each is not None)


class RepeatableUnpack:
    """Function that returns a saved tensor; it may be called any number of times.

    Args:
        offload: Step that saved the tensor.
    """

    def __init__(self, offload: StepOffload) -> None:
        self._offload = offload

    def __call__(self, saved: MovedTensor | StayingTensor) -> Tensor:
        """Return the tensor, with the values that it had when it was saved.

        Raises:
            RuntimeError: The tensor was changed in place after it was saved.
        """
        if isinstance(saved, MovedTensor):
            self._offload.advance(saved.place)
        return saved.tensor()


class StepOffload:
    """Activations of one step of a rank.

    Args:
        copies: Copies between the device and the host.
        actions: Actions of the rank in this step, in order.
        horizon: Largest number of layers whose activations are on the device at once.
    """

    def __init__(self, copies: DeviceCopies, actions: Sequence[Action], horizon: int) -> None:
        self._copies, self._actions, self._horizon = copies, tuple(actions), horizon
        self._order = LayerOrder(actions)
        self._layers: dict[Place, SavedLayer] = {}
        self._present: dict[Place, SavedLayer] = {}  # on the device, in the order of arrival
        self._storages: WeakValueDictionary[_StorageKey, SavedStorage] = WeakValueDictionary()
        self._states: dict[int, frozenset[int]] = {}
        self._staying: set[int] = set()
        self._halves = {(a.stage, a.microbatch) for a in actions if a.do is Do.W}
        self._at, self._done = -1, 0
        self._stage: StageModule | None = None
        self._call: Any = None
        self._unpack = RepeatableUnpack(self)

    def begin_action(self) -> None:
        """Begin the next action of the rank."""
        self._at += 1
        self._done = 0
        self._arrange()

    def end_action(self) -> None:
        """End the present action; after the last backward action, the layers are forgotten."""
        action = self._actions[self._at]
        place = action.stage, action.microbatch
        if action.do is Do.F:
            self._order.complete(*place)
            return
        for layer in self._layers_of(*place):
            layer.is_used = True
        if action.do is not Do.I or place not in self._halves:
            for number in range(self._order.count(action) or 0):
                self._present.pop((*place, number), SavedLayer()).release()
                self._layers.pop((*place, number), None)

    @contextmanager
    def saving(self, stage: StageModule) -> Iterator[None]:
        """Move the activations that autograd saves in the block: a forward action.

        Args:
            stage: Stage that runs.
        """
        number = self._actions[self._at].stage
        if number not in self._states:
            self._states[number] = frozenset(map(_address, _plain(stage)))
        self._staying = set(self._states[number])
        self._stage, self._call = stage, self  # no call yet
        self._done = -1
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._stage = None
            self._staying.clear()

    def keep(self, arguments: Any) -> None:
        """Keep tensors on the device that the present action gets, and does not compute.

        Args:
            arguments: Arguments of the model, with tensors anywhere in them.
        """
        tensors = (leaf for leaf in flatten(arguments)[0] if type(leaf) is Tensor)
        self._staying.update(map(_address, tensors))

    def advance(self, place: Place) -> None:
        """Begin the backward pass of a layer, if it is one that the present action has not begun.

        Args:
            place: Layer of which a tensor is read.
        """
        action = self._actions[self._at]
        if action.do is Do.F or place[:2] != (action.stage, action.microbatch):
            return
        done = (self._order.count(action) or 0) - 1 - place[2]
        if done > self._done:
            for number in range(self._done, done):
                count = self._order.count(action) or 0
                self._layers[(*place[:2], count - 1 - number)].is_used = True
            self._done = done
            self._arrange()

    def close(self, *, has_failed: bool) -> None:
        """End the step: free the device's memory, and after a failure also the host's.

        Args:
            has_failed: True if the step has raised an error. Its graphs may live as long as the
                error, but cannot be used any more.
        """
        if has_failed:
            for storage in list(self._storages.values()):
                with suppress(RuntimeError):  # a device that has failed may run nothing any more
                    storage.free()
        else:
            for layer in self._present.values():
                layer.release()
        self._present.clear()
        self._layers.clear()
        self._copies.buffers.trim()

    @property
    def present_layers(self) -> int:
        """Number of layers whose activations are on the device now."""
        return len(self._present)

    def _pack(self, tensor: Tensor) -> MovedTensor | StayingTensor:
        """Return the object that autograd keeps in place of a tensor that it saves."""
        if not self._is_moved(tensor):
            return StayingTensor(tensor)
        start, end = extent(tensor)
        if end - start < LEAST_BYTES:
            return StayingTensor(tensor)
        place = self._present_place()
        storage = self._saved(tensor, start, end, self._layers[place])
        return MovedTensor(tensor, storage, start, place)

    def _is_moved(self, tensor: Tensor) -> bool:
        """Return True if a tensor is an activation on the device, and neither a parameter etc."""
        if type(tensor) is not Tensor or tensor.device != self._copies.device:
            return False
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
            return False
        if tensor.is_conj() or tensor.is_neg() or isinstance(tensor._base, nn.Parameter):
            return False
        return _address(tensor) not in self._staying

    def _saved(self, tensor: Tensor, start: int, end: int, layer: SavedLayer) -> SavedStorage:
        """Return the storage of a tensor on the host; start its copy if there is none yet.

        Args:
            tensor: Tensor that autograd saves.
            start, end: First byte to copy, and the byte after the last one.
            layer: Layer that saves the tensor.
        """
        key = _address(tensor), tensor._version, start, end
        storage = self._storages.get(key)
        if storage is None:
            # While this reference lives, no other storage gets the address.
            weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            storage = SavedStorage(self._copies, content(tensor, start, end), weak)
            self._storages[key] = storage
        layer.add(storage)
        return storage

    def _present_place(self) -> Place:
        """Return the layer that runs in a forward action; begin it if it is new."""
        assert self._stage is not None
        action, call = self._actions[self._at], self._stage.running
        is_new = call is not self._call and (call is None or call.is_unit)
        if is_new or self._done < 0:
            self._call = call
            self._done += 1
            place = action.stage, action.microbatch, self._done
            self._layers[place] = self._present[place] = SavedLayer()
            self._order.found(place)
            self._arrange()
        return action.stage, action.microbatch, self._done

    def _arrange(self) -> None:
        """Release layers that are not wanted, and load those that are."""
        following = self._order.following(self._at, max(self._done, 0), self._horizon)
        wanted = {place: self._layers[place] for place in following if place in self._layers}
        others = [place for place in self._present if place not in wanted]
        room = self._horizon - len(wanted)
        for number, place in enumerate(others):
            layer = self._present[place]
            if len(others) - number > room or layer.is_used or layer.is_copied:
                self._present.pop(place).release()
        for place, layer in wanted.items():
            if place not in self._present:
                self._present[place] = layer
                layer.hold()

    def _layers_of(self, stage: int, microbatch: int) -> Iterator[SavedLayer]:
        places = list(self._layers)
        return (self._layers[each] for each in places if each[:2] == (stage, microbatch))


def _plain(stage: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a stage that are plain tensors, and no shards."""
    for tensor in (*stage.parameters(), *stage.buffers()):
        if type(tensor) in (Tensor, nn.Parameter):
            yield tensor


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which no other living storage has."""
    return int(tensor.untyped_storage()._cdata)
