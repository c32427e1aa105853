# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.tensorflow.sync_batch_norm`: the names of `smdist.dataparallel.tensorflow`."""

from sagemaker_dist_horovod.names import names_of

__getattr__, __dir__, __all__ = names_of("smdist.dataparallel.tensorflow")
