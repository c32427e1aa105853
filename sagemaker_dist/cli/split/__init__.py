# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist plan model.py`, which splits a model over instances.

cluster.py           hosts, links and devices of an instance type, as input of the planner
split_options.py     options of the command
planner_process.py   runs the planner in another process, because it imports torch
"""

from sagemaker_dist.cli.split.planner_process import plan_split, run_in_runtime
from sagemaker_dist.cli.split.split_options import (
    MODEL_OPTIONS,
    SplitOptions,
    model_options,
    split_options,
)

__all__ = [
    "MODEL_OPTIONS",
    "SplitOptions",
    "model_options",
    "plan_split",
    "run_in_runtime",
    "split_options",
]
