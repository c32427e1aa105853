# SPDX-License-Identifier: Apache-2.0
"""Errors of one rank in a step, which end the step of all ranks, so that none waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sagemaker_dist.errors import DistError
from smdist.dataparallel.rendezvous import engine_shutdown
from smdist.dataparallel.tensorflow import basics


@contextmanager
def others_aborted() -> Iterator[None]:
    """Tell the other ranks about an error in the `with` block, and raise it.

    An engine that has failed keeps its first fault, which TensorFlow's errors come from.
    """
    try:
        yield
    except BaseException as error:
        _abort(error)
        raise


def can_exchange() -> bool:
    """Tell whether this rank is connected to the others, and none of them has failed."""
    return basics.is_initialized() and engine_shutdown.last_fault() is None


def _abort(error: BaseException) -> None:
    if basics.is_initialized():
        details = json.dumps(error.as_dict()) if isinstance(error, DistError) else ""
        engine_shutdown.abort(engine_shutdown.reason_of(f"rank {basics.rank()}", error), details)
