# SPDX-License-Identifier: Apache-2.0
"""A model becomes stages on ranks: `parallelize`, and `Parallel`, which is used as the model."""

from smdist.modelparallel.torch.parallel.making import parallelize
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.together import DisagreementError

__all__ = ["DisagreementError", "Parallel", "parallelize"]
