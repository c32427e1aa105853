# SPDX-License-Identifier: Apache-2.0
"""Session of model parallelism for Keras: options, and this rank's place in the pipelines."""

from smdist.modelparallel.tensorflow.keras_session.keras_session import (
    KerasSession,
    current_session,
    end,
    init,
    is_initialized,
)
from smdist.modelparallel.tensorflow.keras_session.partition_hooks import (
    register_post_partition_hook,
    run_hooks,
)

__all__ = [
    "KerasSession",
    "current_session",
    "end",
    "init",
    "is_initialized",
    "register_post_partition_hook",
    "run_hooks",
]
