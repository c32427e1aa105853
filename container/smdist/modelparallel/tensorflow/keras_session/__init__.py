# SPDX-License-Identifier: Apache-2.0
"""Session of model parallelism for Keras: options, and this rank's place in the pipelines."""

from smdist.modelparallel.tensorflow.keras_session.keras_session import (
    KerasSession,
    current_session,
    end,
    init,
    is_initialized,
)

__all__ = ["KerasSession", "current_session", "end", "init", "is_initialized"]
