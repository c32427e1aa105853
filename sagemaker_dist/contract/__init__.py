# SPDX-License-Identifier: Apache-2.0
"""The ground floor that the SDK and the training image share. Standard library only."""

from sagemaker_dist.contract.distribution import (
    Distribution,
    distribution_of,
    in_our_image,
    read_distribution,
)
from sagemaker_dist.contract.metrics import metric_definitions
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.options import DataParallel, host_faults
from sagemaker_dist.contract.ranges import WEIGHTS, MiB, range_faults
from sagemaker_dist.contract.smp import SMPv1, SMPv2, smp_faults, smp_world_faults
from sagemaker_dist.contract.wire import (
    KEY,
    VERSION,
    parse,
    parse_engine,
    parse_framework,
    render,
    spell,
)
from sagemaker_dist.contract.world import World, sort_hosts

__all__ = [
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
    "distribution_of",
    "host_faults",
    "in_our_image",
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
