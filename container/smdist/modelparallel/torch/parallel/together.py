# SPDX-License-Identifier: Apache-2.0
"""A fault of one rank in the first step is one of all: none waits for a rank that has stopped.

What a rank does by itself is followed by a short exchange over the world. What ranks do with each
other cannot be: there the engine carries the reason to whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.executor.alarm import Alarm
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.mail.post import gather

BEFORE: Final = "the step, before the model's call"


class DisagreementError(OptionError):
    """Ranks are about to do different things, or one of them cannot go on."""


@contextmanager
def together(doing: str) -> Iterator[None]:
    """All ranks of the world come here, and none goes on if one of them has failed within.

    Args:
        doing: What ranks do within, each by itself: "the capture of the model".

    Raises:
        BaseException: The fault of this rank, or an error that names the one that has it.
    """
    fault: BaseException | None = None
    try:
        yield
    except BaseException as error:  # whatever it is, others wait for this rank
        fault = error
    faults = gather(in_words(fault), session.current().world)
    if fault is not None:
        raise fault
    raise_first(dict(enumerate(faults)), doing)


@contextmanager
def ending_all(groups: Groups, doing: str) -> Iterator[None]:
    """A fault within, where ranks meet, ends what all ranks do: they cannot go on after it.

    Raises:
        BaseException: The fault of this rank; elsewhere a StepError that names it.
    """
    try:
        yield
    except BaseException as error:
        if session.current().size == 1:
            raise
        told = Alarm(groups.of(Axis.PP)).error(error, doing, "the model")
        if told.rank == groups.rank:
            raise
        raise told from error


def in_words(fault: BaseException | None) -> str:
    """A fault as it travels; "" for none."""
    if fault is None or isinstance(fault, DistError):
        return "" if fault is None else str(fault)
    text = str(fault).strip()
    return f"{type(fault).__name__}: {text}" if text else type(fault).__name__


def raise_first(faults: Mapping[int, str], doing: str) -> None:
    """Raise for the first rank that has a fault, if one has.

    Args:
        faults: By rank of the world, in words.

    Raises:
        DisagreementError: Names the rank, and its fault.
    """
    for rank, fault in faults.items():
        if fault:
            what, mend = f"rank {rank} failed in {doing}", "See the error of that rank"
            raise DisagreementError(what, fault.rstrip("."), mend)
