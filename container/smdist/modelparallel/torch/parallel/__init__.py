# SPDX-License-Identifier: Apache-2.0
"""Models split into pipeline stages: use the `Parallel` that `parallelize` returns as the model."""

from smdist.modelparallel.core.session_agreement import DisagreementError
from smdist.modelparallel.torch.parallel.parallel import Parallel, current_parallel
from smdist.modelparallel.torch.parallel.parallelize_model import parallelize

__all__ = ["DisagreementError", "Parallel", "current_parallel", "parallelize"]
