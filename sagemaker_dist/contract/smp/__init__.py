# SPDX-License-Identifier: Apache-2.0
"""Options of AWS's model parallel library ("SMP"), checked before a job starts.

SageMaker's SDK sends unknown keys, impossible degrees and empty parameters without a check; the job
then fails on paid instances, or trains differently from what was requested. AWS's images run
versions 1 and 2 of the library. The smdist runtime runs requests for version 1 whose options
`to_model_parallel` can convert.
"""

from sagemaker_dist.contract.smp.rank_layout import smp_world_faults
from sagemaker_dist.contract.smp.smp_checks import smp_faults
from sagemaker_dist.contract.smp.smp_options import SDK_PLACEMENTS, SMPv1, SMPv2
from sagemaker_dist.contract.smp.to_model_parallel import (
    model_parallel_options,
    runtime_faults,
    smp_warnings,
)

__all__ = [
    "SDK_PLACEMENTS",
    "SMPv1",
    "SMPv2",
    "model_parallel_options",
    "runtime_faults",
    "smp_faults",
    "smp_warnings",
    "smp_world_faults",
]
