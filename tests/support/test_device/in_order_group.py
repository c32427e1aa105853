# SPDX-License-Identifier: Apache-2.0
"""A process group for the device's tensors that ignores the tags of messages, as NCCL does.

Messages of one rank to another arrive in the order in which they are sent, whatever their tags.
"""

from concurrent.futures import Future
from threading import Event, Thread

import torch
import torch.distributed as dist

from .host_group import HostGroup

BACKEND = "in_order"
_TAG = 0


def register() -> None:
    """Make `new_group(backend="in_order")` known to torch. Once a process."""
    if BACKEND.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(BACKEND, communicator, devices=["cpu", "testdev"])


def communicator(store, rank, size, timeout, device=None, has_high_priority=False):
    """Make a group of `size` ranks, which meet at a store: each waits for the others, as NCCL's."""
    return InOrderGroup(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


class _Receive:
    """A receive that copies what has arrived to the device when somebody waits for it."""

    def __init__(self, work, on_host, target, is_aborted) -> None:
        self._work, self._on_host, self._target = work, on_host, target
        self._is_aborted = is_aborted

    def wait(self) -> None:
        arrival = Future()
        Thread(target=_settle, args=(arrival, self._work), daemon=True).start()
        while not arrival.done():  # Gloo's own wait does not end when a group is aborted
            if self._is_aborted.wait(0.001):
                raise RuntimeError("the group was aborted")
        arrival.result()
        self._target.copy_(self._on_host)


def _settle(arrival, work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        arrival.set_exception(error)
    else:
        arrival.set_result(None)


class InOrderGroup(HostGroup):
    """Sends and receives beside the collectives of a HostGroup. On the CPU, tags count."""

    def __init__(self, gloo, rank, size) -> None:
        super().__init__(gloo, rank, size)
        self._is_aborted = Event()

    def getBackendName(self):  # noqa: N802  the name that torch calls
        return BACKEND

    def name(self):
        """The name of the backend."""
        return BACKEND

    def _get_backend(self, device):
        return self

    def send(self, tensors, target, tag):
        """Send a tensor, once the device has made it."""
        on_device = not tensors[0].is_cpu
        return self._gloo.send([tensors[0].cpu()], target, _TAG if on_device else tag)

    def recv(self, tensors, source, tag):
        """Receive a tensor."""
        if tensors[0].is_cpu:
            return self._gloo.recv(tensors, source, tag)
        on_host = torch.empty_like(tensors[0], device="cpu")
        work = self._gloo.recv([on_host], source, _TAG)
        return _Receive(work, on_host, tensors[0], self._is_aborted)

    def abort(self):
        """End all receives with an error, as NCCL's group does."""
        self._is_aborted.set()
