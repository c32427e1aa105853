# SPDX-License-Identifier: Apache-2.0
"""Options, hyperparameter format and rank arithmetic shared by the SDK and the training image.

This package imports only the standard library and `sagemaker_dist.errors`, so that the training
image needs nothing else of the SDK.
"""

from sagemaker_dist.contract.data_parallel import DataParallel, host_faults
from sagemaker_dist.contract.distribution import (
    Distribution,
    claim_for_launcher,
    distribution_of,
    read_distribution,
)
from sagemaker_dist.contract.hyperparameter_format import (
    KEY,
    VERSION,
    parse,
    parse_engine,
    parse_framework,
    render,
    spell,
)
from sagemaker_dist.contract.metrics import metric_definitions
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.ranges import (
    ENCRYPT,
    GPU_COLLECTIVES,
    INTEGRITY,
    WEIGHTS,
    MiB,
    range_faults,
)
from sagemaker_dist.contract.smp import SMPv1, SMPv2, smp_faults, smp_world_faults
from sagemaker_dist.contract.world import World, sort_hosts

__all__ = [
    "ENCRYPT",
    "GPU_COLLECTIVES",
    "INTEGRITY",
    "KEY",
    "VERSION",
    "WEIGHTS",
    "DataParallel",
    "Distribution",
    "MiB",
    "ModelParallel",
    "SMPv1",
    "SMPv2",
    "World",
    "claim_for_launcher",
    "distribution_of",
    "host_faults",
    "metric_definitions",
    "parse",
    "parse_engine",
    "parse_framework",
    "range_faults",
    "read_distribution",
    "render",
    "smp_faults",
    "smp_world_faults",
    "sort_hosts",
    "spell",
]
