# SPDX-License-Identifier: Apache-2.0
"""Labels of an image in Amazon ECR, read without a download of the image.

The labels are in the image's configuration, a small JSON document that ECR stores like a layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.request import urlopen

from sagemaker_dist.packaging.image_labels import ImageLabels, is_derived

ECR_URI: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<name>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
_UNREADABLE: Final = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)  # raised for a document of another form
_TIMEOUT_SECONDS: Final = 10.0
_LARGEST_BYTES: Final = 1_000_000


def ecr_labels(session: Any, image: str) -> ImageLabels | None:
    """Return the labels of an image in ECR; None if they cannot be read.

    They cannot be read if the image is not in ECR, if the credentials of `session`, a
    boto3.Session, lack the actions ecr:BatchGetImage or ecr:GetDownloadUrlForLayer, or if ECR does
    not answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    place = ECR_URI.fullmatch(image)
    if place is None:
        return None
    try:
        return _read(session.client("ecr", region_name=place["region"]), place)
    except (BotoCoreError, ClientError, OSError, *_UNREADABLE):
        return None


def _read(ecr: Any, place: re.Match[str]) -> ImageLabels:
    where = {"registryId": place["account"], "repositoryName": place["name"]}
    tag, digest = place["tag"], place["digest"]
    which = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    manifest = _manifest(ecr, where, which)
    if "manifests" in manifest:  # an index: one manifest per platform, and notes on the build
        platforms = [each for each in manifest["manifests"] if _is_platform(each)]
        manifest = _manifest(ecr, where, {"imageDigest": platforms[0]["digest"]})
    url = ecr.get_download_url_for_layer(**where, layerDigest=manifest["config"]["digest"])
    return labels_in(_download(url["downloadUrl"]))


def _manifest(ecr: Any, where: dict[str, str], which: dict[str, str]) -> dict[str, Any]:
    found = ecr.batch_get_image(**where, imageIds=[which])["images"][0]["imageManifest"]
    manifest: dict[str, Any] = json.loads(found)
    return manifest


def _is_platform(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("platform", {}).get("architecture") != "unknown")


def _download(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the URL is ECR's
        document: dict[str, Any] = json.loads(answer.read(_LARGEST_BYTES))
    return document


def labels_in(configuration: Mapping[str, Any]) -> ImageLabels:
    """Return the labels in an image's configuration, a document of the OCI image format."""
    steps = [
        (str(each.get("created_by", "")), not each.get("empty_layer", False))
        for each in configuration.get("history", [])
    ]
    labels = configuration["config"].get("Labels") or {}
    return ImageLabels(labels=labels, is_derived=is_derived(steps))
