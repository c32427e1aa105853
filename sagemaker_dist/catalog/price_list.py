# SPDX-License-Identifier: Apache-2.0
"""Prices of training instances from AWS's price list API (client "pricing" of boto3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from sagemaker_dist.catalog.aws_answers import boto3_errors_translated
from sagemaker_dist.catalog.prices import PriceNote
from sagemaker_dist.errors import SetupError

SERVICE: Final = "AmazonSageMaker"
ENDPOINT_REGION: Final = "us-east-1"  # the API has an endpoint in a few regions only
_COMPONENT: Final = "Training"
_UNIT: Final = "Hrs"


def fetch_prices(session: Any) -> PriceNote:
    """Return the on-demand prices of training instances in the region of a boto3 session.

    The call is free of charge and changes nothing. It needs the permission pricing:GetProducts.

    Raises:
        SetupError: The API did not answer, or has no price of a training instance in this region.
    """
    with boto3_errors_translated(_WHAT, session.region_name, _PERMISSION):
        client = session.client("pricing", region_name=ENDPOINT_REGION)
    return fetch_with(client, region=session.region_name)


def fetch_with(pricing: Any, *, region: str | None) -> PriceNote:
    """Return the on-demand prices of training instances in a region.

    Args:
        pricing: boto3 client "pricing".
        region: AWS region of the prices, such as "eu-west-1".

    Raises:
        SetupError: The API did not answer, or has no price of a training instance in this region.
    """
    filters = {"regionCode": region, "component": _COMPONENT}
    request = {
        "ServiceCode": SERVICE,
        "Filters": [
            {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in filters.items()
        ],
    }
    with boto3_errors_translated(_WHAT, region, _PERMISSION):
        pages = pricing.get_paginator("get_products").paginate(**request)
        found = dict(sorted(_prices(text for page in pages for text in page["PriceList"])))
    if not found:
        raise SetupError(
            f"the price list of region {region} has no training instance",
            f"{SERVICE} has no product with the component {_COMPONENT} there",
            "Pass --region with a region in which SageMaker trains",
            kind="no_prices",
        )
    return PriceNote(
        source=f"pricing.get_products of {SERVICE}",
        date=datetime.now(timezone.utc).date().isoformat(),
        region=str(region),
        usd_per_hour=found,
    )


_WHAT: Final = "AWS's price list"
_PERMISSION: Final = "pricing:GetProducts"


def _prices(products: Iterator[str]) -> Iterator[tuple[str, float]]:
    for text in products:
        product = json.loads(text)
        name = product.get("product", {}).get("attributes", {}).get("instanceName")
        price = _hourly(product.get("terms", {}).get("OnDemand", {}))
        if name and price:
            yield name, price


def _hourly(terms: Mapping[str, Any]) -> float | None:
    """Return the price per hour of a product's on-demand terms; None if it has none above 0."""
    for term in terms.values():
        for dimension in term.get("priceDimensions", {}).values():
            price = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if dimension.get("unit") == _UNIT and price > 0:
                return price
    return None
