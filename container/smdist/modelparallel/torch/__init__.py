# SPDX-License-Identifier: Apache-2.0
"""PyTorch models split over several devices: `import smdist.modelparallel.torch as smp`."""

from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.torch.capture import CaptureError
from smdist.modelparallel.torch.marks import partition, set_partition
from smdist.modelparallel.torch.planning import Plan, forecast, plan
from smdist.modelparallel.torch.verify import Verified, VerifyError, verify

__all__ = [
    "CaptureError",
    "Cluster",
    "Device",
    "Link",
    "Plan",
    "StateBytes",
    "Verified",
    "VerifyError",
    "forecast",
    "partition",
    "plan",
    "set_partition",
    "verify",
]
