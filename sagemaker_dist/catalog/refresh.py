# SPDX-License-Identifier: Apache-2.0
"""Refresh of the table of instance types.

The names of the types come from boto3's model of SageMaker's API. The facts about them come from
the API of Amazon EC2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from sagemaker_dist.catalog.aws_answers import boto3_errors_translated
from sagemaker_dist.catalog.from_ec2 import instance_of
from sagemaker_dist.catalog.instances import Instance
from sagemaker_dist.catalog.table import Table

_EC2: Final = "Amazon EC2"
_PERMISSION: Final = "ec2:DescribeInstanceTypes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """New table of instance types, and its differences from the previous table.

    Attributes:
        table: The new table, not written to disk yet.
        described: Names of the types that EC2 described this time.
        kept: Names of the types that EC2 did not describe in this region. The new table has the
            facts of the previous table about them.
        added: Names of the types that the previous table did not have.
        removed: Names of the types of the previous table that SageMaker no longer lists.
    """

    table: Table
    described: frozenset[str]
    kept: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]


def refresh_table(session: Any, *, before: Table) -> Refresh:
    """Return a new table with facts that EC2 reports in the region of a boto3 session.

    The calls of EC2's API are free of charge and change nothing.

    Args:
        session: boto3 session.
        before: Previous table; types that EC2 does not describe keep its facts.

    Raises:
        SetupError: EC2 did not answer: no region, no credentials, no permission or no network.
    """
    with boto3_errors_translated(_EC2, session.region_name, _PERMISSION):
        clients = session.client("ec2"), session.client("sagemaker")
    return refresh_with(*clients, before=before)


def refresh_with(ec2: Any, sagemaker: Any, *, before: Table) -> Refresh:
    """Return a new table with facts that EC2 reports about all instance types of training jobs.

    Args:
        ec2: boto3 client of EC2.
        sagemaker: boto3 client of SageMaker, whose service model lists the names.
        before: Previous table, which provides the facts about types that EC2 does not describe.

    Raises:
        SetupError: EC2 did not answer: no region, no credentials, no permission or no network.
    """
    import botocore

    names = sagemaker.meta.service_model.shape_for("TrainingInstanceType").enum
    fresh = Table(
        source=f"ec2.describe_instance_types in {ec2.meta.region_name}",
        names=f"TrainingInstanceType in botocore {botocore.__version__}",
        date=datetime.now(timezone.utc).date().isoformat(),
        instances={},
    )
    with boto3_errors_translated(_EC2, ec2.meta.region_name, _PERMISSION):
        described = {each.name: each for each in _described(ec2, fresh.dated_source)}
    return _refreshed(fresh, frozenset(names), described, before)


def _refreshed(
    fresh: Table, names: frozenset[str], described: Mapping[str, Instance], before: Table
) -> Refresh:
    old = before.instances
    known = {name: each for name, each in old.items() if each.sources}
    return Refresh(
        table=replace(
            fresh,
            instances={
                name: described.get(name) or old.get(name) or Instance(name=name) for name in names
            },
        ),
        described=names & described.keys(),
        kept=(names & known.keys()) - described.keys(),
        added=names - old.keys(),
        removed=frozenset(old) - names,
    )


def _described(ec2: Any, source: str) -> Iterator[Instance]:
    for page in ec2.get_paginator("describe_instance_types").paginate():
        for each in page["InstanceTypes"]:
            yield instance_of(each, source)
