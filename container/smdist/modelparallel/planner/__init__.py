# SPDX-License-Identifier: Apache-2.0
"""Command line of the planner: `python -m smdist.modelparallel.planner model.py`.

`sagemaker-dist plan model.py` starts the planner as a process of its own, because the planner
imports torch or Keras, and the user's file.

arguments.py        reads command-line arguments
cluster_json.py     reads the cluster from JSON
command.py          makes and prints the plan, and returns the exit status
framework.py        tells models of torch from those of Keras
model_file.py       imports the user's file
stdout_redirect.py  sends output of the user's file to standard error
"""
