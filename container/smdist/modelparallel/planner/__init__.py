# SPDX-License-Identifier: Apache-2.0
"""Command line of the planner: `python -m smdist.modelparallel.planner model.py`.

The planner imports the framework and the user's file, so it is a process of its own:
`sagemaker-dist plan model.py` starts it and imports neither.

arguments.py        command-line arguments
cluster_json.py     the cluster, from JSON
command.py          the run, up to the exit status
model_file.py       the user's file
stdout_redirect.py  keeps output of the user's file out of the plan's
"""
