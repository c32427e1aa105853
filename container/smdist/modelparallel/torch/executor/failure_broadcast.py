# SPDX-License-Identifier: Apache-2.0
"""One rank's failure ends the step on all ranks, with one reason.

On our backend the engine carries the reason: whatever anybody waits for fails with it. On others
(Gloo) the reason is put into the group's store, then the connections are closed: who waits here
finds them closed, reads the reason, and closes its own.
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
    said,
)

_KEY: Final = "smdist/step/fault"
_CLOSED: Final = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # Gloo's
_TAG: Final = (1 << 24) - 1  # nobody sends it


class Alarm:
    """Of one group of ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._is_ours = dist.get_backend(group) in ("smdist", "smddp")

    def error(self, error: BaseException, action: str, module: str) -> StepError:
        """What this rank raises for an exception; other ranks are told before.

        Args:
            error: The exception.
            action: What this rank did.
            module: What of the model ran.
        """
        fault = self._heard(error)
        if fault is not None:
            self._close()
            return StepError(fault)
        if isinstance(error, LostError):
            return self._lost(error, action)
        fault = self._fault(action, module, said(error), gone=self._gone(error))
        self._tell(fault)
        kind = StepInterruptedError if isinstance(error, KeyboardInterrupt) else StepError
        return kind(fault)

    def _heard(self, error: BaseException) -> Fault | None:
        """The fault of another rank, if that is what ended this one."""
        if isinstance(error, StepError):
            return error.fault
        cause = error.cause if isinstance(error, LostError) else error
        if isinstance(cause, dist.DistBackendError):
            fault = last_fault() if self._is_ours else None
            return None if fault is None else Fault.decode(fault.details)
        return self._stored() if isinstance(error, LostError) and not self._is_ours else None

    def _lost(self, error: LostError, action: str) -> StepError:
        """Nobody has said why: the other rank is gone."""
        peer = "another rank"
        if error.peer is not None:
            peer = f"rank {self._world(error.peer)} (pipeline rank {error.peer})"
        why = f"a message from or to {peer} was lost ({said(error.cause)})"
        gone = self._gone(error)
        fault = self._fault(action, f"a message of {peer}", why, gone=gone)
        self._tell(fault)
        hint = f"Look in the logs for a rank that ended before, such as {peer}"
        return StepError(fault, hint if gone is None else "")

    def _gone(self, error: BaseException) -> int | None:
        """The rank whose end this error is of, among all; other waits fail with it, too."""
        cause = error.cause if isinstance(error, LostError) else error
        if self._is_ours:
            fault = last_fault() if isinstance(cause, dist.DistBackendError) else None
            return fault.culprit if fault is not None and fault.kind == "lost" else None
        if not isinstance(error, LostError) or error.peer is None:
            return None
        is_closed = any(word in str(cause) for word in _CLOSED)
        return self._world(error.peer) if is_closed else None

    def _fault(self, action: str, module: str, why: str, *, gone: int | None) -> Fault:
        own = dist.get_rank(self._group)
        rank = self._world(own)
        return Fault(rank=rank, pipeline_rank=own, action=action, module=module, why=why, gone=gone)

    def _world(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank)

    def _tell(self, fault: Fault) -> None:
        if self._is_ours:
            abort(fault.line, fault.encode())
            return
        with suppress(Exception):  # the store may be gone with the rank that kept it
            self._store().set(_KEY, fault.encode())
        self._close()

    def _stored(self) -> Fault | None:
        with suppress(Exception):
            store = self._store()
            return Fault.decode(store.get(_KEY).decode()) if store.check([_KEY]) else None
        return None

    def _store(self) -> Store:
        return self._group.get_group_store()

    def _close(self) -> None:
        """Gloo closes all connections of a group when somebody has waited too long for one."""
        own, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        for peer in range(0 if self._is_ours else size):
            with suppress(RuntimeError):  # time is over, or it is closed already
                if peer != own:
                    nothing = torch.empty(1, dtype=torch.uint8)
                    self._group.recv([nothing], peer, _TAG).wait(timedelta(milliseconds=1))
