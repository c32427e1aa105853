# SPDX-License-Identifier: Apache-2.0
"""A training job as plain processes of this machine: no Docker, no AWS.

    driver (your script)          supervisor (detached)            hosts
    ProcessRunner.start  ------>  one per job, outlives   ------>  launcher algo-1 -> ranks
       |  pipe: EOF = stop        the driver                       launcher algo-2 -> ranks
       |                          writes state.json, logs/,
       +-- reads state.json,      model.tar.gz
           logs/, writes `stop`

Everything that is known of a job lies in its folder, so any process can
describe it, follow its logs or stop it.
"""

from sagemaker_dist.runners.processes.runner import ProcessRunner

__all__ = ["ProcessRunner"]
