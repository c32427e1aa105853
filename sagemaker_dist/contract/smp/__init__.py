# SPDX-License-Identifier: Apache-2.0
"""The options of AWS's model parallel library ("SMP"), checked before a cluster starts.

SageMaker's SDK sends unknown keys, impossible degrees and empty parameters without a word; the
job then fails on a cluster that is paid for, or trains something else. AWS's images run both
versions; our runtime reads those of version 1, as `ours` says.
"""

from sagemaker_dist.contract.smp.faults import smp_faults
from sagemaker_dist.contract.smp.options import SDK_PLACEMENTS, SMPv1, SMPv2
from sagemaker_dist.contract.smp.ours import as_options, our_faults, smp_warnings
from sagemaker_dist.contract.smp.worlds import smp_world_faults

__all__ = [
    "SDK_PLACEMENTS",
    "SMPv1",
    "SMPv2",
    "as_options",
    "our_faults",
    "smp_faults",
    "smp_warnings",
    "smp_world_faults",
]
