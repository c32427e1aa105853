# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist instances`: list, show and refresh the table of instance types."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from moto import mock_aws
from terminals import shown_in_a_terminal, without_codes

from sagemaker_dist.catalog import read_table, training_instances
from sagemaker_dist.cli import main

DIMENSION = {"unit": "Hrs", "pricePerUnit": {"USD": "12.5000000000"}}


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
    assert "ml.p4d.24xlarge 8 A100 40 NVLink 96 1152 400 400 4 x86_64 37.688 -" == " ".join(
        line.split()
    )


@pytest.mark.parametrize("columns", [80, 150])
def test_list_fits_in_a_terminal(columns):
    """A narrow terminal gets fewer columns and a note; a wide one gets all."""
    command = [sys.executable, "-m", "sagemaker_dist.cli", "instances", "list"]
    said = shown_in_a_terminal(command, {"TERM": "xterm", "COLUMNS": str(columns)})
    lines = without_codes(said).splitlines()

    assert columns >= max(map(len, lines))
    assert ("architecture" in lines[0]) == (columns == 150)


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


def test_show_has_the_price(capsys):
    """`show` prints each known price with region and source; without one, it says so."""
    main(["instances", "show", "ml.g5.xlarge"])
    known = capsys.readouterr().out
    main(["instances", "show", "ml.p5en.48xlarge"])

    assert "1.57 USD/h in eu-west-1: AWS bill of December 2023" in known
    assert "price         unknown" in capsys.readouterr().out


def test_list_of_another_region(capsys):
    """With --region, only prices of that region are listed."""
    main(["instances", "list", "--region", "eu-north-1", "--json"])

    assert not any(each["prices"] for each in json.loads(capsys.readouterr().out))


def test_list_of_an_unknown_region(capsys):
    """A misspelt region is an error that names the likely one, and no list without prices."""
    assert 2 == main(["instances", "list", "--region", "eu-nort-1", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]

    assert ("region", "unknown") == (error["about"], error["kind"])
    assert "'eu-north-1'" in error["hint"]


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


@pytest.fixture
def price_list(monkeypatch):
    """An endpoint of the price list API, which moto does not have, with one price."""
    terms = {"OnDemand": {"T": {"priceDimensions": {"R": DIMENSION}}}}
    product = {"product": {"attributes": {"instanceName": "ml.p4d.24xlarge"}}, "terms": terms}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"PriceList": [json.dumps(product)]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", f"http://127.0.0.1:{server.server_port}")
        Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@mock_aws
def test_refresh_writes_a_table(capsys, tmp_path, price_list):
    """`refresh` writes a new table and leaves the shipped one unchanged; prices go to the home."""
    output = tmp_path / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])
    table = read_table(output)

    assert 0 == status
    assert "ec2.describe_instance_types in us-east-1" == table.source
    assert 96 == table.instances["ml.p4d.24xlarge"].num_vcpus
    assert f"{output}: {len(table.instances)} types" in capsys.readouterr().out
    main(["instances", "list", "--accelerated"])
    assert "x86_64 12.5 us-east-1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@mock_aws
def test_refresh_where_nothing_can_be_written(capsys, tmp_path):
    """The hint names the option --output."""
    output = tmp_path / "absent" / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])

    assert 1 == status
    assert "Pass --output" in capsys.readouterr().err


@pytest.mark.parametrize("region", ["", "eu west 1", "EU-WEST-1", "eu-west-1/", "mars-1"])
def test_refresh_in_a_region_of_no_such_name(capsys, tmp_path, region):
    """A text that is no name of a region is refused before AWS is called."""
    status = main(["instances", "refresh", f"--region={region}", f"--output={tmp_path / 't.json'}"])

    assert 2 == status
    assert f"the region is {region!r}" in capsys.readouterr().err


def test_refresh_without_credentials(capsys, tmp_path):
    """Without credentials there is one message, no traceback and no file."""
    output = tmp_path / "types.json"
    status = main(["instances", "refresh", "--region", "us-east-1", "--output", str(output)])

    assert 1 == status
    assert "aws configure" in capsys.readouterr().err
    assert not output.exists()
