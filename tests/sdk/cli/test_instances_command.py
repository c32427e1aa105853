# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist instances`: list, show and refresh the table of instance types."""

import json
import sys

import pytest
from moto import mock_aws
from terminals import shown_in_a_terminal, without_codes

from sagemaker_dist.catalog import read_table, training_instances
from sagemaker_dist.cli import main


def test_list_has_every_type(capsys):
    """Every type has one line, sorted by family and size."""
    status = main(["instances", "list"])
    head, *lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]

    assert 0 == status
    assert "type" == head.split()[0]
    assert set(training_instances()) == set(names)
    assert names.index("ml.c5.xlarge") < names.index("ml.c5.2xlarge") < names.index("ml.c5n.xlarge")


def test_list_cuts_nothing_where_there_is_no_terminal(capsys):
    """Output to a pipe has no cut cells."""
    main(["instances", "list", "--accelerated"])
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("ml.p4d.24xlarge"))

    assert "…" not in said
    assert "ml.p4d.24xlarge 8 A100 40 NVLink 96 1152 400 400 4 x86_64" == " ".join(line.split())


@pytest.mark.parametrize("columns", [80, 130])
def test_list_fits_in_a_terminal(columns):
    """A narrow terminal gets fewer columns and a note; a wide one gets all."""
    command = [sys.executable, "-m", "sagemaker_dist.cli", "instances", "list"]
    said = shown_in_a_terminal(command, {"TERM": "xterm", "COLUMNS": str(columns)})
    lines = without_codes(said).splitlines()

    assert columns >= max(map(len, lines))
    assert ("architecture" in lines[0]) == (columns == 130)


def test_accelerated_types_alone(capsys):
    """--json has every field, null if unknown, and the derived capabilities."""
    main(["instances", "list", "--accelerated", "--json"])
    documents = json.loads(capsys.readouterr().out)

    assert all(each["is_accelerated"] for each in documents)
    assert len(documents) == sum(each.is_accelerated for each in training_instances().values())
    assert (
        None
        is next(each for each in documents if each["name"] == "ml.p2.xlarge")[
            "network_sustained_gbps"
        ]
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ml.p4d.24xlarge", ["8 A100, 40 GiB each", "NVLink", "400 Gbit/s\n", "4 interfaces"]),
        ("ml.trn1.32xlarge", ["16 Trainium, 32 GiB each", "Neuron cores  32", "NeuronLink"]),
        ("ml.c5.xlarge", ["accelerators  none", "10 Gbit/s at best, 1.25 lasting", "EFA"]),
        ("ml.p2.xlarge", ["1 K80, 12 GiB each", "1.25 Gbit/s at best, ? lasting"]),
    ],
)
def test_show(capsys, name, said):
    """`show` prints the facts about one type, and their sources."""
    status = main(["instances", "show", name])
    out = capsys.readouterr().out

    assert 0 == status
    assert [] == [each for each in said if each not in out]
    assert training_instances()[name].sources[-1] in out


def test_show_for_programs(capsys):
    """`show --json` has the values that Python's catalog has."""
    main(["instances", "show", "ml.p5.48xlarge", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert (32, True, "gpu") == (
        document["num_efa"],
        document["supports_efa"],
        document["accelerator_kind"],
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("p4d.24xlarge", "Did you mean 'ml.p4d.24xlarge'?"), ("?", "sagemaker-dist instances list")],
)
def test_unknown_type(capsys, name, hint):
    """A misspelt type is an OptionError with the closest name."""
    status = main(["instances", "show", name])

    assert 2 == status
    assert hint in capsys.readouterr().err


@mock_aws
def test_refresh_writes_a_table(capsys, tmp_path):
    """`refresh --output` writes a new table and leaves the shipped one unchanged."""
    output = tmp_path / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])
    table = read_table(output)

    assert 0 == status
    assert "ec2.describe_instance_types in us-east-1" == table.source
    assert 96 == table.instances["ml.p4d.24xlarge"].num_vcpus
    assert f"{output}: {len(table.instances)} types" in capsys.readouterr().out


@pytest.mark.slow
@mock_aws
def test_refresh_where_nothing_can_be_written(capsys, tmp_path):
    """The hint names the option --output."""
    output = tmp_path / "absent" / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])

    assert 1 == status
    assert "Pass --output" in capsys.readouterr().err


def test_refresh_without_credentials(capsys, tmp_path):
    """Without credentials there is one message, no traceback and no file."""
    output = tmp_path / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])

    assert 1 == status
    assert "aws configure" in capsys.readouterr().err
    assert not output.exists()
