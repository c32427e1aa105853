# SPDX-License-Identifier: Apache-2.0
"""A training job on this machine: as plain processes, or as containers of Docker.

    driver (your script)          supervisor (detached)            hosts
    LocalRunner.start    ------>  one per job, outlives   ------>  launcher algo-1 -> ranks
       |  pipe: EOF = stop        the driver                       launcher algo-2 -> ranks
       |                          writes state.json, logs/,        (processes.py, containers.py)
       +-- reads state.json,      model.tar.gz
           logs/, writes `stop`

Everything that is known of a job lies in its folder, so any process can
describe it, follow its logs or stop it.
"""

from sagemaker_dist.runners.local.runner import LocalRunner

__all__ = ["LocalRunner"]
