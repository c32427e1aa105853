# SPDX-License-Identifier: Apache-2.0
"""Failure of a step on one rank: it is sent to all ranks, which end the step with the same error.

With the backend "smdist", the communication engine sends the failure to all ranks, and every
pending operation fails with it.

Other backends, such as Gloo, cannot do this. There the failing rank writes the failure to the
store of the process group, and closes its connections. Ranks that wait for messages of the failing
rank get an error, read the failure from the store, and close their own connections.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from smdist.dataparallel.rendezvous.engine_shutdown import abort, last_fault
from smdist.modelparallel.torch.executor.step_errors import (
    Fault,
    LostError,
    StepError,
    StepInterruptedError,
    error_text,
)
from smdist.modelparallel.torch.session.device_p2p import (
    TAGGED,
    backend_name,
    end_device_transfers,
)

_KEY: Final = "smdist/step/fault"
_CLOSED: Final = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # Gloo's
_TAG: Final = (1 << 24) - 1  # no rank sends a message with this tag


class Alarm:
    """Sender and receiver of failures: if a step fails on one rank, all ranks raise its error.

    Args:
        group: Process group of the ranks. Failures are sent in a way that the group's backend
            supports.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._is_ours = backend_name(group, torch.device("cpu")) in TAGGED

    def error(self, error: BaseException, action: str, module: str) -> StepError:
        """Send an exception of this rank to all ranks, and return the error to raise in its place.

        If the exception is only a consequence of another rank's failure, nothing is sent, and the
        returned error describes the failure of that rank.

        Args:
            error: Exception that was raised on this rank.
            action: Action that this rank ran, such as "1F3" (stage 1, forward, microbatch 3), or a
                description of other work.
            module: Name of the module that ran, or a description of other code.
        """
        fault = self._received(error)
        if fault is not None:
            self._close()
            return StepError(fault)
        if isinstance(error, LostError):
            return self._lost(error, action)
        fault = self._fault(action, module, error_text(error), gone=self._gone(error))
        self._send(fault)
        kind = StepInterruptedError if isinstance(error, KeyboardInterrupt) else StepError
        return kind(fault)

    def _received(self, error: BaseException) -> Fault | None:
        """Return the failure of another rank that caused an exception of this rank.

        The result is None if this rank failed by itself, or if the other failure is not known here.
        """
        if isinstance(error, StepError):
            return error.fault
        cause = error.cause if isinstance(error, LostError) else error
        if isinstance(cause, dist.DistBackendError):
            fault = last_fault() if self._is_ours else None
            return None if fault is None else Fault.decode(fault.details)
        return self._stored() if isinstance(error, LostError) and not self._is_ours else None

    def _lost(self, error: LostError, action: str) -> StepError:
        """Return the error to raise if a message could not be sent or received for unknown reasons.

        This failure is sent to all ranks.

        Args:
            error: Failure of the message.
            action: Action that this rank ran.
        """
        peer = "another rank"
        if error.peer is not None:
            peer = f"rank {self._world(error.peer)} (pipeline rank {error.peer})"
        why = f"communication with {peer} failed: {error_text(error.cause)}"
        gone = self._gone(error)
        fault = self._fault(action, f"a transfer to or from {peer}", why, gone=gone)
        self._send(fault)
        hint = f"Read the log of {peer}, and of each rank that ended earlier"
        return StepError(fault, hint if gone is None else "")

    def _gone(self, error: BaseException) -> int | None:
        """Return the world rank of the process whose exit caused an exception of this rank.

        The result is None if no process has ended, or if it is not known which process has ended.
        """
        cause = error.cause if isinstance(error, LostError) else error
        if self._is_ours:
            fault = last_fault() if isinstance(cause, dist.DistBackendError) else None
            return fault.culprit if fault is not None and fault.kind == "lost" else None
        if not isinstance(error, LostError) or error.peer is None:
            return None
        is_closed = any(word in str(cause) for word in _CLOSED)
        return self._world(error.peer) if is_closed else None

    def _fault(self, action: str, module: str, why: str, *, gone: int | None) -> Fault:
        """Return the description of a failure of this rank, as data that can be sent.

        Args:
            action: Action or other work that failed.
            module: Name of the module that ran, or a description of other code.
            why: Text of the error.
            gone: World rank of the process whose exit caused the failure; None if there is none.
        """
        own = dist.get_rank(self._group)
        rank = self._world(own)
        return Fault(rank=rank, pipeline_rank=own, action=action, module=module, why=why, gone=gone)

    def _world(self, rank: int) -> int:
        """Return the world rank of the group's rank `rank`."""
        return dist.get_global_rank(self._group, rank)

    def _send(self, fault: Fault) -> None:
        """Send a failure of this rank to all ranks; their pending operations then fail."""
        if self._is_ours:
            abort(fault.line, fault.encode())
            self._close()
            return
        with suppress(Exception):  # the store ends with the rank that serves it
            self._store().set(_KEY, fault.encode())
        self._close()

    def _stored(self) -> Fault | None:
        """Return the failure that a rank has written to the group's store.

        The result is None if the store has no failure, or can no longer be reached.
        """
        with suppress(Exception):
            store = self._store()
            return Fault.decode(store.get(_KEY).decode()) if store.check([_KEY]) else None
        return None

    def _store(self) -> Store:
        return self._group.get_group_store()

    def _close(self) -> None:
        """Close this rank's connections to the other ranks, so that their pending operations fail.

        Gloo closes all connections of a group when a receive times out. So this method posts
        receives that time out after 1 ms. With the backend "smdist" it only ends operations of
        other backends, such as NCCL, on this rank's device.
        """
        end_device_transfers()
        own, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        for peer in range(0 if self._is_ours else size):
            with suppress(RuntimeError):  # the wait timed out, or the connection is closed already
                if peer != own:
                    nothing = torch.empty(1, dtype=torch.uint8)
                    self._group.recv([nothing], peer, _TAG).wait(timedelta(milliseconds=1))
