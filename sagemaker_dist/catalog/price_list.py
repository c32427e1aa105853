# SPDX-License-Identifier: Apache-2.0
"""Prices of training instances from AWS's price list, by its API GetProducts.

The API has endpoints in few regions; us-east-1 answers for all. Its calls are free of charge. A
product of SageMaker training has the usage type `USE1-Train:ml.p4d.24xlarge`, with the
abbreviation of the region; the same types for notebooks, hosting and processing have other ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from sagemaker_dist.catalog.prices import Price
from sagemaker_dist.errors import SetupError

ENDPOINT_REGION: Final = "us-east-1"
_SERVICE: Final = "AmazonSageMaker"
_USAGE: Final = re.compile(r"(?:[A-Z0-9]+-)?Train:(?P<type>ml\.[a-z0-9.-]+)")
_UNIT: Final = "Hrs"


def fetch_prices(session: Any, region: str) -> dict[str, Price]:
    """Return the prices on demand of SageMaker training in a region, by instance type.

    Args:
        session: boto3 session with credentials that may call pricing:GetProducts.
        region: Region of the training, such as "eu-west-1".

    Raises:
        SetupError: The price list did not answer, or has no price for the region.
    """
    from botocore.exceptions import BotoCoreError

    try:
        client = session.client("pricing", region_name=ENDPOINT_REGION)
    except BotoCoreError as error:
        raise _no_answer(str(error)) from error
    return prices_from(client, region)


def prices_from(client: Any, region: str) -> dict[str, Price]:
    """Return the prices on demand of SageMaker training that a client of the price list reports.

    Args:
        client: boto3 client of "pricing".
        region: Region of the training.

    Raises:
        SetupError: The price list did not answer, or has no price for the region.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}]
    today = datetime.now(timezone.utc).date().isoformat()
    found = {}
    try:
        pages = client.get_paginator("get_products").paginate(ServiceCode=_SERVICE, Filters=filters)
        for page in pages:
            for text in page["PriceList"]:
                for name, dollars in _training_prices(json.loads(text)):
                    found[name] = Price(
                        dollars_per_hour=dollars,
                        source="pricing.get_products",
                        date=today,
                        region=region,
                    )
    except ClientError as error:
        code = error.response["Error"]["Code"]
        is_denied = code.startswith("AccessDenied")
        raise _no_answer(str(error), "access_denied" if is_denied else "refused") from error
    except BotoCoreError as error:
        raise _no_answer(str(error)) from error
    if not found:
        raise SetupError(
            f"the price list has no SageMaker training in {region}",
            "none of its products has a usage type with Train:",
            "Check the name of the region",
            kind="no_prices",
        )
    return found


def _training_prices(product: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the type and the dollars per hour of a product, if it is training on demand."""
    usage = _USAGE.fullmatch(product["product"]["attributes"].get("usagetype", ""))
    if usage is None:
        return
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            dollars = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == _UNIT and dollars > 0:
                yield usage["type"], dollars


def _no_answer(why: str, kind: str = "") -> SetupError:
    return SetupError(
        "AWS's price list did not answer",
        why.rstrip("."),
        "Allow pricing:GetProducts in an IAM policy, or leave --prices out",
        kind=kind,
    )
