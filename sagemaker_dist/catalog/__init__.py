# SPDX-License-Identifier: Apache-2.0
"""Tables of instance types, prices and accelerators, each fact with its source and date."""

from sagemaker_dist.catalog.accelerators import Accelerator, accelerator_of, accelerators
from sagemaker_dist.catalog.instances import LOCAL, LOCAL_PROCESS, Instance
from sagemaker_dist.catalog.past_spot_jobs import PastSpotJobs, SpotJobs, read_spot_jobs
from sagemaker_dist.catalog.price_list import fetch_prices
from sagemaker_dist.catalog.prices import (
    PRICE_LIST,
    SPOT_PRICES,
    Price,
    PriceNote,
    Prices,
    all_prices,
    is_price,
    price_of,
    prices,
    prices_for,
    read_prices,
    write_prices,
)
from sagemaker_dist.catalog.refresh import Refresh, refresh_table
from sagemaker_dist.catalog.regions import check_region
from sagemaker_dist.catalog.table import (
    SHIPPED,
    Table,
    read_table,
    training_instances,
    write_table,
)

__all__ = [
    "LOCAL",
    "LOCAL_PROCESS",
    "PRICE_LIST",
    "SHIPPED",
    "SPOT_PRICES",
    "Accelerator",
    "Instance",
    "PastSpotJobs",
    "Price",
    "PriceNote",
    "Prices",
    "Refresh",
    "SpotJobs",
    "Table",
    "accelerator_of",
    "accelerators",
    "all_prices",
    "check_region",
    "fetch_prices",
    "is_price",
    "price_of",
    "prices",
    "prices_for",
    "read_prices",
    "read_spot_jobs",
    "read_table",
    "refresh_table",
    "training_instances",
    "write_prices",
    "write_table",
]
