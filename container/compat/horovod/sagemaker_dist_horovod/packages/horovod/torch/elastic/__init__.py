# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.torch.elastic`: the names of `smdist.dataparallel.torch.horovod.elastic`."""

from sagemaker_dist_horovod.names import names_of

__getattr__, __dir__, __all__ = names_of("smdist.dataparallel.torch.horovod.elastic")
