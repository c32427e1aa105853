# SPDX-License-Identifier: Apache-2.0
"""AWS's regions, as the installed boto3 knows them, and those of the files of prices."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from sagemaker_dist.catalog.prices import price_files, read_prices
from sagemaker_dist.errors import closest, require

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_region(region: str | None) -> None:
    """Check the name of a region that the user gives; None is right.

    Raises:
        OptionError: No region has this name.
        SetupError: A file of prices cannot be read, or has another form.
    """
    require(
        region is None or _NAME.fullmatch(region) is not None,
        what=f"the region is {region!r}",
        why="names of AWS's regions have small letters, digits and hyphens",
        hint="Pass a name such as eu-west-1, or leave it out for AWS's own settings",
        about="region",
    )
    if region is None or region in _known_to_boto3():
        return
    of_prices = {each.region for path in price_files() for each in read_prices(path)}
    meant = closest(region, _known_to_boto3())
    require(
        region in of_prices,
        what=f"the region is {region!r}",
        why="neither boto3 nor a file of prices has a region of this name",
        hint=f"{meant if meant.startswith('Did') else 'Pass a name such as eu-west-1.'}"
        " If the region is new, update boto3",
        about="region",
        kind="unknown",
    )


@cache
def _known_to_boto3() -> frozenset[str]:
    from botocore.loaders import create_loader

    partitions = create_loader().load_data("endpoints")["partitions"]
    return frozenset(name for each in partitions for name in each["regions"])
