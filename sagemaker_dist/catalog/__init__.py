# SPDX-License-Identifier: Apache-2.0
"""Tables of instance types and accelerators, each fact with its source and date."""

from sagemaker_dist.catalog.accelerators import Accelerator, accelerator_of, accelerators
from sagemaker_dist.catalog.instances import LOCAL, LOCAL_PROCESS, Instance
from sagemaker_dist.catalog.refresh import Refresh, refresh_table
from sagemaker_dist.catalog.table import (
    SHIPPED,
    Table,
    read_table,
    training_instances,
    write_table,
)

__all__ = [
    "LOCAL",
    "LOCAL_PROCESS",
    "SHIPPED",
    "Accelerator",
    "Instance",
    "Refresh",
    "Table",
    "accelerator_of",
    "accelerators",
    "read_table",
    "refresh_table",
    "training_instances",
    "write_table",
]
