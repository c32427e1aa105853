# SPDX-License-Identifier: Apache-2.0
"""Names of horovod.tensorflow.elastic: smdist.elastic in Horovod's form."""

from __future__ import annotations

from smdist.elastic.horovod_run import run
from smdist.elastic.horovod_tensorflow import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
