# SPDX-License-Identifier: Apache-2.0
"""Functions of SMDDP for tf.estimator and sessions, which TensorFlow 2.16 no longer has."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import OptionError


def overlap(tensor: Any) -> Any:
    """Return the tensor unchanged.

    SMDDP needs this call to overlap all-reduces with the backward pass. smdist overlaps them
    always, so the call has no effect.
    """
    return tensor


def broadcast_global_variables(root_rank: int) -> None:
    """Raise an error that names the replacement; TensorFlow 2 has no global variables.

    Raises:
        OptionError: Always.
    """
    raise _removed(
        f"broadcast_global_variables({root_rank!r})",
        "Call broadcast_variables(model.variables, root_rank=0) and the same for the optimizer's",
    )


class BroadcastGlobalVariablesHook:
    """SMDDP's hook for sessions; its constructor always raises OptionError."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        raise _removed(
            f"BroadcastGlobalVariablesHook({root_rank!r}{f', {device!r}' if device else ''})",
            "Call broadcast_variables(), or pass callbacks.BroadcastGlobalVariablesCallback(0) "
            "of smdist.dataparallel.tensorflow.keras to fit()",
        )


def _removed(call: str, hint: str) -> OptionError:
    return OptionError(
        f"smdist does not support the call {call}",
        "TensorFlow 2.16 and later have no estimators and no sessions",
        hint,
        about=call.partition("(")[0],
        kind="unsupported",
    )
