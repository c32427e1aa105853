# SPDX-License-Identifier: Apache-2.0
"""AWS account in a region: moto's, with stubbed answers for calls that moto lacks."""

from contextlib import contextmanager

import boto3
from botocore.stub import Stubber

REGION = "eu-west-1"


class Session:
    """Session whose clients may be stubbed."""

    region_name = REGION

    def __init__(self):
        self.clients = {}

    def client(self, name):
        if name not in self.clients:
            self.clients[name] = boto3.client(name, region_name=REGION)
        return self.clients[name]


@contextmanager
def answers(session, service, *given):
    """Queue the next answers of a service: (method, response) or (method, error code)."""
    with Stubber(session.client(service)) as stubber:
        for method, answer in given:
            if isinstance(answer, str):
                stubber.add_client_error(method, service_error_code=answer)
            else:
                stubber.add_response(method, answer)
        yield


def allow(session, group, other, first=0, last=65535):
    pair = [{"GroupId": other}]
    rule = {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, "UserIdGroupPairs": pair}
    session.client("ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
