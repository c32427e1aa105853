# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist plan model.py`: how a model would be split over instances.

cluster.py   an instance type as the cluster that the planner plans for
options.py   the command line
planner.py   the planner, a process of its own: this package imports no framework
"""

from sagemaker_dist.cli.split.options import (
    MODEL_OPTIONS,
    SplitOptions,
    model_options,
    split_options,
)
from sagemaker_dist.cli.split.planner import plan_split

__all__ = ["MODEL_OPTIONS", "SplitOptions", "model_options", "plan_split", "split_options"]
