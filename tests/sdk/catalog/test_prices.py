# SPDX-License-Identifier: Apache-2.0
"""Prices: the shipped table, a user's file, and AWS's price list answered by botocore's Stubber."""

import json
from datetime import date

import boto3
import pytest
from botocore.stub import Stubber

from sagemaker_dist.catalog import (
    read_prices,
    shipped_prices,
    training_instances,
    write_prices,
)
from sagemaker_dist.catalog.price_list import prices_from
from sagemaker_dist.errors import OptionErrors, SetupError


def product(usage, dollars, unit="Hrs"):
    """Return one element of PriceList, as text."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": dollars}}
    term = {"priceDimensions": {"a.b.c": dimension}}
    attributes = {"usagetype": usage, "regionCode": "eu-west-1"}
    return json.dumps({"product": {"attributes": attributes}, "terms": {"OnDemand": {"a.b": term}}})


@pytest.fixture
def pricing():
    client = boto3.Session("testing", "testing").client("pricing", region_name="us-east-1")
    with Stubber(client) as stub:
        yield client, stub


def asked(**more):
    match = {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"}
    return {"ServiceCode": "AmazonSageMaker", "Filters": [match], **more}


def test_every_shipped_price_has_a_known_type_and_a_date():
    """The table names types of SageMaker, with source and date, and no spot prices."""
    prices = shipped_prices()

    assert {} == dict(prices.spot)
    assert set() == set(prices.on_demand) - set(training_instances())
    for price in prices.on_demand.values():
        assert price.source
        date.fromisoformat(price.date)


def test_training_prices_of_all_pages(pricing):
    """Hosting, free hours and other units are no prices of training."""
    client, stub = pricing
    first = [product("EU-Train:ml.p4d.24xlarge", "12.5"), product("EU-Host:ml.g5.xlarge", "3")]
    second = [
        product("Train:ml.g5.xlarge", "1.5"),
        product("EU-Train:ml.c5.xlarge", "0"),
        product("EU-Train:ml.m5.xlarge", "9", unit="GB-Mo"),
    ]
    stub.add_response("get_products", {"PriceList": first, "NextToken": "more"}, asked())
    stub.add_response("get_products", {"PriceList": second}, asked(NextToken="more"))

    found = prices_from(client, "eu-west-1")

    assert {"ml.p4d.24xlarge": 12.5, "ml.g5.xlarge": 1.5} == {
        name: each.dollars_per_hour for name, each in found.items()
    }
    assert {"eu-west-1"} == {each.region for each in found.values()}


def test_refused(pricing):
    """A missing permission is a SetupError that names it."""
    client, stub = pricing
    stub.add_client_error("get_products", "AccessDeniedException", "no", 400)

    with pytest.raises(SetupError) as caught:
        prices_from(client, "eu-west-1")

    assert "access_denied" == caught.value.kind


def test_region_without_prices(pricing):
    """An empty answer is an error, not an empty file."""
    client, stub = pricing
    stub.add_response("get_products", {"PriceList": []}, asked())

    with pytest.raises(SetupError) as caught:
        prices_from(client, "eu-west-1")

    assert "no_prices" == caught.value.kind


def test_fetched_prices_override_shipped_ones(pricing, tmp_path):
    """A file that was written is read back with source and date, and takes precedence."""
    client, stub = pricing
    rows = [product("EU-Train:ml.p4d.24xlarge", "12.5")]
    stub.add_response("get_products", {"PriceList": rows}, asked())
    found = prices_from(client, "eu-west-1")
    write_prices(found.items(), tmp_path / "prices.json")

    prices = shipped_prices().overridden_by(read_prices(tmp_path / "prices.json"))

    assert found["ml.p4d.24xlarge"] == prices.on_demand["ml.p4d.24xlarge"]
    assert shipped_prices().on_demand["ml.g5.xlarge"] == prices.on_demand["ml.g5.xlarge"]


def test_all_faults_of_a_file(tmp_path):
    """Each wrong entry is reported, with its value."""
    wrong = {
        "source": 1,
        "date": "soon",
        "dolars": {},
        "dollars_per_hour": {"ml.g5.xlarge": -2, "ml.p4d.24xlarge": True},
    }
    path = tmp_path / "prices.json"
    path.write_text(json.dumps([wrong]))

    with pytest.raises(OptionErrors) as caught:
        read_prices(path)

    said = str(caught.value)
    assert [] == [
        each
        for each in ("'dolars'", "source is 1", "'soon'", "ml.g5.xlarge is -2", "24xlarge is True")
        if each not in said
    ]
