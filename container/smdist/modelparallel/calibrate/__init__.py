# SPDX-License-Identifier: Apache-2.0
"""Measurement of this machine: `python -m smdist.modelparallel.calibrate`.

`sagemaker-dist calibrate` starts it as a process of its own, because it imports torch.

measurement_command.py   arguments, progress and exit status
measure_all.py     all parts, and the time that each may take
products.py        products of matrices, and copies of memory
local_ranks.py     starts processes that connect by this project's engine
rank_process.py    one of these processes: all-reduces and messages
processor_watch.py part of the processors' time that other programs take meanwhile
folders.py         files on the disk and in a channel's folder
machine_facts.py   processor, memory and versions
report.py          table of the result
"""
