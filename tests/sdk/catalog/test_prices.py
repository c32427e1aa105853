# SPDX-License-Identifier: Apache-2.0
"""Prices: the files, which of them wins, and AWS's price list by botocore's Stubber."""

import json

import boto3
import pytest
from botocore.stub import Stubber

from sagemaker_dist.catalog import (
    price_of,
    prices,
    prices_for,
    read_prices,
    training_instances,
)
from sagemaker_dist.catalog.price_list import fetch_with
from sagemaker_dist.catalog.prices import (
    PRICE_LIST,
    SHIPPED_PRICES,
    USER_PRICES,
    PriceNote,
    write_prices,
)
from sagemaker_dist.errors import SetupError


def note(region, **usd_per_hour):
    named = {f"ml.{name}.xlarge": value for name, value in usd_per_hour.items()}
    return PriceNote(source="a list", date="2026-11-27", region=region, usd_per_hour=named)


def product(name, usd, unit="Hrs"):
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
    terms = {"OnDemand": {"T": {"priceDimensions": {"R": dimension}}}}
    return json.dumps({"product": {"attributes": {"instanceName": name}}, "terms": terms})


@pytest.fixture
def pricing():
    return boto3.Session("testing", "testing", region_name="us-east-1").client("pricing")


def test_shipped_prices_are_sourced():
    """Each shipped price is of a known type, and has a source and a date."""
    notes = read_prices(SHIPPED_PRICES)

    assert notes
    for each in notes:
        assert each.source
        assert 10 == len(each.date)
        assert each.usd_per_hour.keys() <= training_instances().keys()


def test_user_wins_over_the_price_list_and_the_shipped_file():
    """The user's file is first, then the price list of AWS, then the package's file."""
    write_prices([note("eu-west-1", g5=3.0), note("us-east-1", g5=2.0)], PRICE_LIST.expanduser())
    assert 3.0 == price_of("ml.g5.xlarge", "eu-west-1").usd_per_hour
    assert "a list, 2026-11-27" == price_of("ml.g5.xlarge", "eu-west-1").source

    write_prices([note("eu-west-1", g5=1.0)], USER_PRICES.expanduser())
    assert [(None, 1.4084), ("eu-west-1", 1.0), ("us-east-1", 2.0)] == [
        (each.region, each.usd_per_hour) for each in prices("ml.g5.xlarge")
    ]


def test_one_price_for_each_type(tmp_path):
    """A price without a region is taken where the file has none in the region; spot by a file."""
    mine = tmp_path / "mine.json"
    notes = [note(None, g5=2.0, p4=7.0), note("eu-west-1", g5=3.0), note("us-east-1", g5=1.0)]
    spot = PriceNote(source="s", date="2026-11-27", region="us-east-1",
                     spot_usd_per_hour={"ml.p4.xlarge": 2.5})  # fmt: skip
    write_prices([*notes, spot], mine)

    def known(region):
        found = prices_for(region, mine)
        return {name: found.on_demand[f"ml.{name}.xlarge"].usd_per_hour for name in ("g5", "p4")}

    assert {"g5": 3.0, "p4": 7.0} == known("eu-west-1")
    assert {"g5": 2.0, "p4": 7.0} == known("sa-east-1")
    assert {"g5": 1.0, "p4": 7.0} == known(None)
    assert 2.5 == prices_for(file=mine).spot["ml.p4.xlarge"].usd_per_hour
    assert {} == prices_for("eu-west-1", mine).spot
    assert (*notes, spot) == read_prices(mine)


def test_unknown_price():
    """A price in another region is no price in this one."""
    assert price_of("ml.g5.xlarge", "eu-west-1")
    assert price_of("ml.g5.xlarge", "us-east-1") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '[{"source": "x", "date": "d", "region": "r"}]',
        '[{"source": "x", "date": "d", "region": "r", "usd_per_hour": {"t": -1}}]',
        '[{"source": "x", "date": "d", "region": "r", "usd_per_hour": {"t": NaN}}]',
        '[{"source": "x", "date": "d", "region": 1, "usd_per_hour": {"t": 1}}]',
        '[{"source": "x", "date": "d", "region": null, "usd_per_hour": {},'
        ' "spot_usd_per_hour": 1}]',
    ],
)
def test_bad_file(text):
    """A file that has another form is one error, which names the file."""
    path = USER_PRICES.expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(SetupError) as raised:
        prices("ml.g5.xlarge")

    assert "bad_prices" == raised.value.kind
    assert str(path) in raised.value.what


def test_every_page_of_the_price_list(pricing):
    """Hourly prices above 0 are taken; a fee of another unit is not."""
    field = {"Type": "TERM_MATCH"}
    asked = {
        "ServiceCode": "AmazonSageMaker",
        "Filters": [
            {**field, "Field": "regionCode", "Value": "eu-west-1"},
            {**field, "Field": "component", "Value": "Training"},
        ],
    }
    first = [product("ml.g5.xlarge", "1.57"), product("ml.p4d.24xlarge", "13.57", "Quantity")]
    with Stubber(pricing) as stub:
        stub.add_response("get_products", {"PriceList": first, "NextToken": "more"}, asked)
        second = {"PriceList": [product("ml.c5.xlarge", "0.2"), product("ml.m5.large", "0.0")]}
        stub.add_response("get_products", second, {**asked, "NextToken": "more"})
        found = fetch_with(pricing, region="eu-west-1")

    assert {"ml.c5.xlarge": 0.2, "ml.g5.xlarge": 1.57} == found.usd_per_hour
    assert ("eu-west-1", "pricing.get_products of AmazonSageMaker") == (found.region, found.source)


def test_refusal_names_the_permission(pricing):
    """The error names the IAM action to allow."""
    with Stubber(pricing) as stub:
        stub.add_client_error("get_products", "AccessDeniedException", "No.")
        with pytest.raises(SetupError) as raised:
            fetch_with(pricing, region="eu-west-1")

    assert "access_denied" == raised.value.kind
    assert "pricing:GetProducts" in raised.value.hint


def test_region_without_training(pricing):
    """An empty list is an error, and no file is replaced by nothing."""
    with Stubber(pricing) as stub:
        stub.add_response("get_products", {"PriceList": []})
        with pytest.raises(SetupError) as raised:
            fetch_with(pricing, region="nowhere-1")

    assert "no_prices" == raised.value.kind
