# SPDX-License-Identifier: Apache-2.0
"""Facts about SageMaker as tables with a source and a date."""

from sagemaker_dist.catalog.instances import LOCAL, LOCAL_PROCESS, Instance, training_instances

__all__ = ["LOCAL", "LOCAL_PROCESS", "Instance", "training_instances"]
