# SPDX-License-Identifier: Apache-2.0
"""Budgets: the time that max_cost pays for, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.catalog import Price
from sagemaker_dist.errors import OptionError, parts_of
from sagemaker_dist.planning import CostTerms, budget_of

G5 = "ml.g5.xlarge"
PRICES = {G5: Price(instance_type=G5, region="eu-west-1", usd_per_hour=1.5, source="a list")}


def terms(**changes):
    known = {"hosts": [(G5, 4)], "prices": PRICES, "region": "eu-west-1"}
    return CostTerms(**{"max_cost": 12, **known, **changes})


def faults(**changes):
    with pytest.raises(OptionError) as raised:
        budget_of(terms(**changes))
    return [(each.about, each.kind) for each in parts_of(raised.value)]


def test_time_that_it_pays_for():
    """12 USD pay 4 hosts at 1.5 USD/h for 2 h; SIGTERM and the image take 420 s of them."""
    budget = budget_of(terms())

    assert (7200, 6780) == (budget.paid_seconds, budget.run_seconds)
    assert (6780, 3600) == (budget.limit(86400), budget.limit(3600))
    assert {"SMDIST_USD_PER_HOUR": "6"} == budget.environment
    assert "MaxRuntimeInSeconds=6780" in budget.line(86400)
    assert "MaxRuntimeInSeconds=3600, from max_run" in budget.line(3600)
    assert "\n" not in budget.line(86400)


def test_warm_pool_and_local():
    """The idle time of a warm pool is paid, too; a local job downloads no image."""
    assert 6180 == budget_of(terms(keep_alive_seconds=600)).run_seconds
    here = budget_of(terms(is_local=True, hosts=[("local_process", 4)], price_per_hour=1.5))
    assert 7080 == here.run_seconds


def test_groups():
    """Each group has the price of its own type."""
    other = Price(instance_type="ml.c5.xlarge", region="eu-west-1", usd_per_hour=0.5, source="x")
    prices = {**PRICES, other.instance_type: other}
    budget = budget_of(terms(hosts=[(G5, 2), ("ml.c5.xlarge", 4)], prices=prices))

    assert 5 == budget.usd_per_hour


def test_no_budget():
    """Without max_cost there is none, whatever the price."""
    assert budget_of(CostTerms(max_cost=None)) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_cost": -1}, [(("max_cost",), "range")]),
        ({"max_cost": math.nan}, [(("max_cost",), "range")]),
        ({"max_cost": True}, [(("max_cost",), "range")]),
        ({"max_cost": "50"}, [(("max_cost",), "range")]),
        ({"max_cost": 0.5}, [(("max_cost",), "range")]),
        ({"max_cost": None, "price_per_hour": 3}, [(("price_per_hour",), "no_effect")]),
        ({"prices": {}}, [(("max_cost",), "unknown_price")]),
        ({"prices": {}, "region": None}, [(("max_cost",), "unknown_region")]),
        ({"prices": {}, "region": "<region>"}, [(("max_cost",), "unknown_region")]),
        ({"prices": {}, "max_cost": -1}, [(("max_cost",), "range")]),
        ({"hosts": [("local", 1)], "is_local": True}, [(("max_cost",), "unknown_price")]),
        ({"hosts": None}, [(("max_cost",), "missing")]),
        ({"training_plan": "arn"}, [(("max_cost",), "conflict")]),
        ({"max_run": "3600"}, [(("max_run",), "type")]),
        ({"has_groups": True, "price_per_hour": 3}, [(("price_per_hour",), "conflict")]),
        (
            {"max_cost": 0, "price_per_hour": 0, "training_plan": "arn"},
            [(("max_cost",), "range"), (("price_per_hour",), "range"), (("max_cost",), "conflict")],
        ),
    ],
)
def test_faults(changes, expected):
    """Each fault names its option; all are reported together."""
    assert expected == faults(**changes)


@given(
    max_cost=st.floats(0.01, 1e6),
    price=st.floats(0.01, 1000),
    count=st.integers(1, 500),
    max_run=st.integers(60, 28 * 86400),
    idle=st.integers(0, 3600),
)
def test_bill_is_never_above_max_cost(max_cost, price, count, max_run, idle):
    """The paid time without the model's upload costs max_cost at most, or is refused."""
    given_terms = terms(
        max_cost=max_cost, price_per_hour=price, hosts=[(G5, count)], keep_alive_seconds=idle
    )
    if max_cost * 3600 / (price * count) < 480 + idle:
        with pytest.raises(OptionError) as raised:
            budget_of(given_terms)
        assert "range" == raised.value.kind
        return
    budget = budget_of(given_terms)
    seconds = budget.limit(max_run) + 120 + 300 + idle

    assert 60 <= budget.limit(max_run) <= max_run
    assert seconds * price * count / 3600 <= max_cost * (1 + 1e-9)
