# SPDX-License-Identifier: Apache-2.0
"""Names of horovod.torch.elastic: smdist.elastic in Horovod's form."""

from __future__ import annotations

from smdist.elastic.horovod_run import HorovodElasticSampler as ElasticSampler
from smdist.elastic.horovod_run import run
from smdist.elastic.horovod_torch import HorovodTorchState as TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
