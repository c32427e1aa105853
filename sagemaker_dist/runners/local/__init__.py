# SPDX-License-Identifier: Apache-2.0
"""Training jobs on this machine; each host is a process, or a Docker container.

    driver (your script)          supervisor (detached)            hosts
    LocalRunner.start    ------>  one per job, outlives   ------>  launcher algo-1 -> ranks
       |  pipe (attended jobs)    the driver                       launcher algo-2 -> ranks
       |                          writes state.json, logs/,        (process_fleet.py, containers/)
       +-- reads state.json,      model.tar.gz
           logs/, writes `stop`

The driver is the process that starts the job. The supervisor is a process that starts the hosts,
watches them and saves the results. The job's folder has the whole state of the job. So any process
can describe the job, follow its logs or stop it. For an attended job, the driver also has the write
end of a pipe to the supervisor: if the driver ends, the supervisor reads EOF and stops the job.
"""

from sagemaker_dist.runners.local.local_runner import LocalRunner

__all__ = ["LocalRunner"]
