# SPDX-License-Identifier: Apache-2.0
"""Errors of smdist.dataparallel.torch.horovod, some under the names and base classes of Horovod.

HorovodInternalError (RuntimeError)      a rank was lost or an operation failed -> read the reason
└── HorovodMismatchError (ValueError)    ranks called different operations     -> call the same
GradientRaceError (AssertionError)       gradients are still being reduced     -> call step() first

Wrong arguments raise OptionError, which is a ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from sagemaker_dist.errors import DistError
from smdist.dataparallel.rendezvous.engine_interface import EngineFault
from smdist.dataparallel.rendezvous.engine_shutdown import last_fault
from smdist.dataparallel.torch import _C

# the engine's words for a message about names, before the reason why it has failed
_MESSAGE: Final = re.compile(r"^message \d+ with tag \d+ of group \d+, \w+\(uint8, \d+\): ")
_HINT: Final = "Look for the first error in what the ranks printed"
_HINTS: Final = {  # kind of a fault -> hint
    "left": "That rank ended without an exception: perhaps it had fewer batches, or called"
    " sys.exit(). If its exit status is 0, give all ranks as many batches, or call join() on ranks"
    " that have no more; else look in its log",
    "timeout": "If a rank had fewer batches, call join() on ranks that have no more; if it is only"
    " slow, set a longer timeout",
}


class HorovodInternalError(DistError, RuntimeError):
    """Error of a collective that has failed on this rank; Horovod has the same name.

    Attributes:
        rank: Number of the rank that caused the failure; None if it is not known.
    """

    default_kind = "collective"
    own_fields: ClassVar[tuple[str, ...]] = ("rank",)
    rank: int | None = None


class HorovodMismatchError(HorovodInternalError, ValueError):
    """Error raised on all ranks whose calls differ; the next call works.

    Attributes:
        calls: The calls of the ranks in the order of the ranks, as far as they are known.
    """

    default_kind = "mismatch"
    own_fields: ClassVar[tuple[str, ...]] = ("rank", "calls")
    calls: tuple[Any, ...] = ()


class GradientRaceError(DistError, AssertionError):
    """Error raised when a script changes gradients that are still being reduced."""

    default_kind = "race"


class CallFailed(Exception):  # noqa: N818 - a signal within the package
    """Signal that one call has failed because ranks called different things.

    Attributes:
        fault: The engine's fault of the call; None if it has never started.
    """

    def __init__(self, fault: EngineFault | None) -> None:
        super().__init__(fault)
        self.fault = fault


@contextmanager
def start_errors() -> Iterator[None]:
    """Convert the error of an engine that has failed before.

    Raises:
        HorovodInternalError: No more collectives work on this rank.
    """
    try:
        yield
    except RuntimeError as error:
        raise _internal(error) from error


def wait_for(work: Any) -> None:
    """Wait for torch's handle of an operation of the engine.

    Raises:
        CallFailed: Ranks called different things; the engine still works.
        HorovodInternalError: A rank was lost, or the engine has failed for another reason.
    """
    try:
        work.wait()
    except ValueError as error:
        raise CallFailed(EngineFault.of(_C.fault_of(work))) from error
    except RuntimeError as error:
        raise _internal(error) from error


def _internal(error: RuntimeError) -> HorovodInternalError:
    fault = last_fault()
    kind = fault.kind if fault else ""
    return HorovodInternalError(
        "a collective has failed",
        " ".join((fault.text if fault else str(error)).split()).removesuffix("."),
        f"{_HINTS.get(kind, _HINT)}; no more collectives work on this rank",
        kind=kind,
        rank=fault.culprit if fault else None,
    )


def never_started(call: str, text: str) -> HorovodInternalError:
    """Return the error of an operation with a name that not all ranks have called.

    Args:
        call: The call, such as "allreduce(name='x', (2,) float32)".
        text: Why the engine cannot wait for the other ranks any more.
    """
    fault = last_fault()
    kind, culprit = (fault.kind, fault.culprit) if fault else ("", None)
    reason = _MESSAGE.sub("", fault.text if fault else text)
    if kind == "left":
        reason = f"rank {culprit} has left the group before it called an operation of this name"
    return HorovodInternalError(
        f"{call} has not started",
        " ".join(reason.split()).removesuffix("."),
        f"{_HINTS.get(kind, _HINT)}; no more collectives work on this rank",
        about="name",
        kind=kind,
        rank=culprit,
    )
