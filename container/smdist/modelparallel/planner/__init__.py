# SPDX-License-Identifier: Apache-2.0
"""`python -m smdist.modelparallel.planner model.py`: how a model would be split over a cluster.

It is a process of its own because it imports the framework and the user's file: `sagemaker-dist
plan model.py` starts it, and imports neither.

arguments.py   the command line
cluster.py     a cluster as JSON
command.py     from the command line to an exit status
model_file.py  the user's file
printing.py    what the file prints is not the plan
"""
