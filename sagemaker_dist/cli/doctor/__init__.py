# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist doctor`: whether this machine and the account can run a job.

command.py       the command
rows.py          what a row is; what AWS refuses to say becomes "unknown"
machine.py       Python, packages, Docker, the local runtime
account.py       credentials, region, role, image, buckets, quotas
network.py       subnets, security groups, addresses
file_systems.py  FSx and EFS as the job's hosts reach them
routes.py        the way to S3 out of the network
rules.py         what a security group lets through: pure
"""

from sagemaker_dist.cli.doctor.command import doctor

__all__ = ["doctor"]
