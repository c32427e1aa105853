# SPDX-License-Identifier: Apache-2.0
"""Fields of the last fault of this process's engine: torch's and TensorFlow's errors have none.

If ranks disagree, each may name another one as the culprit, because several notice it at once.
"""

from typing import Any

from smdist.dataparallel.rendezvous.engine_shutdown import last_fault

FIELDS = ("kind", "culprit", "operation")


def fault_fields(*names: str) -> tuple[Any, ...]:
    """Return these fields of the fault, by default kind, culprit and operation.

    Raises:
        AssertionError: The engine has not failed.
    """
    fault = last_fault()
    assert fault is not None
    return tuple(getattr(fault, name) for name in names or FIELDS)
