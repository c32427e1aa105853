# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist doctor`, which checks that this machine and account can run a job.

command.py       the command
rows.py          class of a check's result, and functions that make results
machine.py       Python, packages, Docker, the local runtime
account.py       credentials, region, role, image, buckets, quotas
vpc_checks.py    subnets, security groups, free addresses
file_systems.py  reachability of FSx and EFS from the job's hosts
routes.py        route from the subnets to S3
rules.py         evaluation of security group rules, without calls to AWS
"""

from sagemaker_dist.cli.doctor.command import doctor

__all__ = ["doctor"]
