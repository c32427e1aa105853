# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist doctor`: can this machine and the account run a job?

command.py       the command
rows.py          one row of the result; a question that AWS refuses becomes "unknown"
machine.py       Python, packages, Docker, the local runtime
account.py       credentials, region, role, image, buckets, quotas
vpc_checks.py    subnets, security groups, addresses
file_systems.py  reachability of FSx and EFS from the job's hosts
routes.py        route to S3 out of the network
rules.py         evaluation of security group rules, pure
"""

from sagemaker_dist.cli.doctor.command import doctor

__all__ = ["doctor"]
