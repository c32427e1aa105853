# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist doctor`: rows for a job's subnets, security groups, route to S3, FSx and EFS."""

from types import SimpleNamespace

import pytest
from accounts import REGION, allow, answers

from sagemaker_dist.cli.doctor import file_systems, routes, vpc_checks
from sagemaker_dist.cli.doctor.rules import EVERY_PORT, Peer, allows_egress, allows_ingress


def network_of(session, vpc, num_hosts=2):
    rows = list(vpc_checks.network_rows(session, [vpc["subnet"]], [vpc["group"]], num_hosts))
    return [row for row, _ in rows], rows[-1][1]


def test_ranks_that_cannot_talk(session, vpc):
    """Several hosts need a security group that allows itself; one host does not."""
    rows, _ = network_of(session, vpc)
    alone, _ = network_of(session, vpc, num_hosts=1)

    assert ["ok", "fail", "warn", "ok"] == [row.status for row in rows]
    assert "ranks cannot reach each other on every TCP port (ingress)" in rows[1].text
    assert f"--group-id {vpc['group']}" in rows[1].hint
    assert ["ok", "ok", "warn", "ok"] == [row.status for row in alone]


def test_ranks_that_can_talk(session, vpc):
    """A rule that names its own group lets ranks reach each other."""
    allow(session, vpc["group"], vpc["group"])
    rows, found = network_of(session, vpc)

    assert ["ok", "ok", "warn", "ok"] == [row.status for row in rows]
    assert [vpc["vpc"]] == found.vpcs


@pytest.mark.parametrize(
    ("way", "status"),
    [("endpoint", "ok"), ("nat", "ok"), ("internet gateway", "warn"), ("none", "warn")],
)
def test_way_to_s3(session, vpc, way, status):
    """An internet gateway alone is no route to S3, because hosts have no public address."""
    ec2 = session.client("ec2")
    here = [{"Name": "vpc-id", "Values": [vpc["vpc"]]}]
    table = ec2.describe_route_tables(Filters=here)["RouteTables"][0]["RouteTableId"]
    route = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
    if way == "endpoint":
        ec2.create_vpc_endpoint(
            VpcId=vpc["vpc"], ServiceName=f"com.amazonaws.{REGION}.s3", RouteTableIds=[table]
        )
    elif way == "nat":
        nat = ec2.create_nat_gateway(SubnetId=vpc["subnet"], ConnectivityType="private")
        ec2.create_route(**route, NatGatewayId=nat["NatGateway"]["NatGatewayId"])
    elif way == "internet gateway":
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc["vpc"])
        ec2.create_route(**route, GatewayId=gateway)
    rows, _ = network_of(session, vpc)
    row = next(row for row in rows if row.name == "s3 from the vpc")

    assert status == row.status
    assert ("create-vpc-endpoint" in row.hint) == (status == "warn")


class Ec2:
    """Stub of EC2 with answers that moto does not give."""

    def __init__(self, ends, routes=()):
        self.meta = SimpleNamespace(region_name=REGION)
        self.ends = [{"VpcEndpointId": "vpce-1", **each} for each in ends]
        self.routes = list(routes)

    def describe_vpc_endpoints(self, **_):
        return {"VpcEndpoints": self.ends}

    def describe_route_tables(self, **_):
        own = {"RouteTableId": "rtb-1", "Associations": [{"SubnetId": "subnet-1"}]}
        main = {"RouteTableId": "rtb-2", "Associations": [{"Main": True}]}
        return {"RouteTables": [{**each, "Routes": self.routes} for each in (own, main)]}


GATEWAY = {"VpcEndpointType": "Gateway", "State": "available"}
INTERFACE = {"VpcEndpointType": "Interface", "State": "available"}
BOTH = ["rtb-1", "rtb-2"]


@pytest.mark.parametrize(
    ("end", "says", "hint"),
    [
        ({**GATEWAY, "RouteTableIds": BOTH}, "by vpce-1", ""),
        (
            {**GATEWAY, "RouteTableIds": ["rtb-1"]},
            "for subnet-2; vpce-1 is not in their route tables",
            "modify-vpc-endpoint --vpc-endpoint-id vpce-1 --add-route-table-ids rtb-2",
        ),
        (
            {**GATEWAY, "State": "failed", "RouteTableIds": BOTH},
            "for subnet-1, subnet-2; vpce-1 is failed",
            "--route-table-ids rtb-1 rtb-2",
        ),
        ({**INTERFACE, "PrivateDnsEnabled": True}, "by vpce-1", ""),
        (
            {**INTERFACE, "PrivateDnsEnabled": False},
            "vpce-1 is an interface without private DNS",
            "create-vpc-endpoint",
        ),
    ],
)
def test_endpoint_of_s3(end, says, hint):
    """An S3 endpoint counts if it is available and the subnets' route tables use it."""
    subnets = [{"SubnetId": f"subnet-{number}", "VpcId": "vpc-1"} for number in (1, 2)]
    row = routes.route_row(Ec2([end]), subnets)

    assert ("warn" if hint else "ok") == row.status
    assert says in row.text
    assert hint in row.hint


def test_route_into_nothing():
    """A default route to a deleted gateway (blackhole) is no route to S3."""
    out = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "blackhole"}
    row = routes.route_row(Ec2([], [out]), [{"SubnetId": "subnet-1", "VpcId": "vpc-1"}])

    assert "warn" == row.status


def test_a_subnet_too_small(session, vpc):
    """A subnet needs one free address per host."""
    rows, _ = network_of(session, vpc, num_hosts=1000)

    assert "fail" == rows[0].status
    assert "251 free addresses for 1000 hosts" in rows[0].text


def test_what_is_not_there(session, vpc):
    """A wrong id of a subnet or group is a failed row."""
    rows, found = network_of(session, {"subnet": "subnet-0a1b2c3d", "group": "sg-0a1b2c3d"})

    assert ["fail", "fail"] == [row.status for row in rows]
    assert "subnet-0a1b2c3d" in rows[0].text
    assert found is None


def test_network_that_may_not_be_asked_for(session, vpc):
    """EC2's error code for denied calls gives "unknown"."""
    denied = "UnauthorizedOperation"
    given = (("describe_subnets", denied), ("describe_security_groups", denied))
    with answers(session, "ec2", *given):
        rows, _ = network_of(session, vpc)

    assert ["ec2:DescribeSubnets is not allowed", "ec2:DescribeSecurityGroups is not allowed"] == [
        row.text for row in rows
    ]


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        ({"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}, True),
        ({"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-2"}]}, False),
        ({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}, True),
        ({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/28"}]}, False),
        ({"IpProtocol": "udp", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}, False),
        (
            {
                "IpProtocol": "tcp",
                "FromPort": 988,
                "ToPort": 988,
                "UserIdGroupPairs": [{"GroupId": "sg-1"}],
            },
            False,
        ),
    ],
)
def test_rules(rule, passes):
    """Rules allow a peer by group or by address, on every port."""
    group = {"GroupId": "sg-1", "IpPermissions": [rule]}
    peer = Peer(groups=frozenset({"sg-1"}), cidrs=("10.0.0.0/24",))

    assert passes == allows_ingress([group], peer, EVERY_PORT)


def every_port(**more):
    return {"IpProtocol": "-1", **more}


def ranges(*cidrs):
    return {"IpRanges": [{"CidrIp": each} for each in cidrs]}


HALVES = ranges("10.0.0.0/25", "10.0.0.128/25")
LIST = {"PrefixListIds": [{"PrefixListId": "pl-1"}]}


@pytest.mark.parametrize(
    ("rules", "cidrs", "passes"),
    [
        ([every_port(**ranges("10.0.0.0/24")), every_port(**ranges("10.0.1.0/24"))], 2, True),
        ([every_port(**ranges("10.0.0.0/24"))], 2, False),
        ([every_port(**HALVES)], 1, True),
        ([every_port(**ranges("10.0.0.0/25")), every_port(**ranges("10.0.0.128/25"))], 1, True),
        ([every_port(**ranges("10.0.0.0/25"))], 1, False),
        (
            [
                {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, **ranges("10.0.0.0/25")},
                {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 100, **ranges("10.0.0.128/25")},
            ],
            1,
            False,
        ),
        ([every_port(**LIST)], 1, None),
        ([every_port(**LIST, **ranges("10.0.0.0/24"))], 1, True),
        ([{"IpProtocol": "tcp", "FromPort": 0, "ToPort": 100, **LIST}], 1, False),
        ([], 1, False),
    ],
)
def test_rules_share_addresses(rules, cidrs, passes):
    """Several rules together may allow all subnets; a prefix list makes the result unknown."""
    homes = ("10.0.0.0/24", "10.0.1.0/24")[:cidrs]
    group = {"GroupId": "sg-1", "IpPermissions": rules, "IpPermissionsEgress": rules}
    peer = Peer(groups=frozenset({"sg-1"}), cidrs=homes)

    assert passes is allows_ingress([group], peer, EVERY_PORT)
    assert passes is allows_egress([group], peer, EVERY_PORT)


def test_lists_of_prefixes(session, vpc):
    """A prefix list makes the row "unknown", because its entries are not described."""
    group = {"GroupId": "sg-1", "IpPermissions": [every_port(**LIST)]}
    group["IpPermissionsEgress"] = group["IpPermissions"]
    subnet = {"CidrBlock": "10.0.0.0/24"}
    found = vpc_checks.Network(subnets=(subnet,), groups=(group,))
    rows = list(vpc_checks._group_rows(found, 2))
    reach = file_systems._reach_row("fs-0", [group], found, ((2049, 2049),))

    assert ["unknown"] == [row.status for row in rows]
    assert "a prefix list decides whether ranks" in rows[0].text
    assert ("unknown", True) == (reach.status, "a prefix list decides whether ports" in reach.text)


def test_rules_share_ports():
    """Two adjacent port ranges together allow all ports; with a gap they do not."""
    pair = [{"GroupId": "sg-1"}]
    low = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 999, "UserIdGroupPairs": pair}
    high = {"IpProtocol": "tcp", "FromPort": 1000, "ToPort": 65535, "UserIdGroupPairs": pair}
    peer = Peer(groups=frozenset({"sg-1"}))

    assert allows_ingress([{"IpPermissions": [high, low]}], peer, EVERY_PORT)
    assert not allows_ingress(
        [{"IpPermissions": [{**high, "FromPort": 1001}, low]}], peer, EVERY_PORT
    )


def lustre(vpc, **more):
    return {
        "FileSystemId": "fs-0123456789abcdef0",
        "Lifecycle": "AVAILABLE",
        "VpcId": vpc["vpc"],
        "NetworkInterfaceIds": ["eni-0a1b2c3d"],
        "LustreConfiguration": {"MountName": "mount"},
        **more,
    }


def lustre_rows(session, vpc, found, described, directory="/mount/data"):
    source = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "FSxLustre",
        "DirectoryPath": directory,
    }
    ec2 = session.client("ec2")
    theirs = ec2.describe_security_groups(GroupIds=[vpc["group"]])["SecurityGroups"]
    interface = {"NetworkInterfaces": [{"Groups": [{"GroupId": vpc["group"]}]}]}
    with answers(session, "fsx", ("describe_file_systems", found)):
        if not described:
            return list(file_systems.file_system_rows(session, source, vpc["network"]))
        given = (
            ("describe_network_interfaces", interface),
            ("describe_security_groups", {"SecurityGroups": theirs}),
        )
        with answers(session, "ec2", *given):
            return list(file_systems.file_system_rows(session, source, vpc["network"]))


@pytest.mark.parametrize(
    ("ports", "status"), [([(988, 988), (1018, 1023)], "ok"), ([(988, 988)], "fail"), ([], "fail")]
)
def test_ports_of_lustre(session, vpc, ports, status):
    """Lustre needs ports 988 and 1018-1023 from the job's group to the file system's."""
    for first, last in ports:
        allow(session, vpc["group"], vpc["group"], first, last)
    vpc["network"] = network_of(session, vpc)[1]
    (row,) = lustre_rows(session, vpc, {"FileSystems": [lustre(vpc)]}, True)

    assert status == row.status
    assert "1018-1023" in row.text
    assert ("authorize-security-group-ingress" in row.hint) == (status == "fail")


@pytest.mark.parametrize(
    ("more", "directory", "fault"),
    [
        ({"VpcId": "vpc-0a1b2c3d"}, "/mount/data", "the file system is in vpc-0a1b2c3d"),
        (
            {"NetworkInterfaceIds": []},
            "/data",
            "/data does not begin with the file system's mount name",
        ),
        (
            {"Lifecycle": "DELETING", "NetworkInterfaceIds": []},
            "/mount",
            "the file system is DELETING",
        ),
    ],
)
def test_lustre_that_cannot_be_mounted(session, vpc, more, directory, fault):
    """Another VPC, a wrong mount name, or a file system in deletion fails."""
    vpc["network"] = network_of(session, vpc)[1]
    found = {"FileSystems": [lustre(vpc, **more)]}
    rows = lustre_rows(session, vpc, found, False, directory)

    assert "fail" == rows[0].status
    assert fault in rows[0].text


@pytest.mark.parametrize(
    ("code", "status"), [("FileSystemNotFound", "fail"), ("AccessDeniedException", "unknown")]
)
def test_lustre_unseen(session, vpc, code, status):
    """A missing file system is "fail"; a denied call is "unknown"."""
    vpc["network"] = network_of(session, vpc)[1]
    (row,) = lustre_rows(session, vpc, code, False)

    assert status == row.status


@pytest.mark.parametrize(
    ("has_target", "is_open", "status"),
    [(True, True, "ok"), (True, False, "fail"), (False, False, "warn")],
)
def test_efs(session, vpc, has_target, is_open, status):
    """EFS needs a mount target in the subnet's zone, and port 2049."""
    efs = session.client("efs")
    name = efs.create_file_system(CreationToken="a")["FileSystemId"]
    if has_target:
        efs.create_mount_target(
            FileSystemId=name, SubnetId=vpc["subnet"], SecurityGroups=[vpc["group"]]
        )
    if is_open:
        allow(session, vpc["group"], vpc["group"], 2049, 2049)
    source = {"FileSystemId": name, "FileSystemType": "EFS", "DirectoryPath": "/"}
    _, found = network_of(session, vpc)
    (row,) = file_systems.file_system_rows(session, source, found)

    assert status == row.status
    assert ("2049" in row.text) == has_target


def test_efs_in_another_zone(session, vpc):
    """A mount target of the same VPC in another zone is not enough."""
    efs, ec2 = session.client("efs"), session.client("ec2")
    name = efs.create_file_system(CreationToken="a")["FileSystemId"]
    other = ec2.create_subnet(
        VpcId=vpc["vpc"], CidrBlock="10.0.1.0/24", AvailabilityZone="us-west-2b"
    )
    efs.create_mount_target(FileSystemId=name, SubnetId=other["Subnet"]["SubnetId"])
    source = {"FileSystemId": name, "FileSystemType": "EFS", "DirectoryPath": "/"}
    _, found = network_of(session, vpc)
    (row,) = file_systems.file_system_rows(session, source, found)

    assert "warn" == row.status


def test_efs_that_is_not_there(session, vpc):
    """The row of a missing file system names its id."""
    source = {"FileSystemId": "fs-0", "FileSystemType": "EFS", "DirectoryPath": "/"}
    _, found = network_of(session, vpc)
    (row,) = file_systems.file_system_rows(session, source, found)

    assert "fail" == row.status
