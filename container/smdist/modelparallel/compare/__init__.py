# SPDX-License-Identifier: Apache-2.0
"""Command line that compares a plan with a trace: `python -m smdist.modelparallel.compare`.

`sagemaker-dist compare plan.json trace.json` starts it as a process of its own, because the
runtime may be in another environment.

comparison_command.py   arguments, both files, and exit status
"""
