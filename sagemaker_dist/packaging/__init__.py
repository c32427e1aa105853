# SPDX-License-Identifier: Apache-2.0
"""Training images: built, looked at and pushed; and the Docker engine they live in."""

from sagemaker_dist.packaging.aws import account_of, boto_session, role_arn
from sagemaker_dist.packaging.build import build_image
from sagemaker_dist.packaging.ecr import ecr_image
from sagemaker_dist.packaging.facts import ImageFacts, check_versions, inspect_image, local_image
from sagemaker_dist.packaging.frameworks import FRAMEWORKS, default_tag, is_ours
from sagemaker_dist.packaging.options import ImageOptions
from sagemaker_dist.packaging.push import PushedImage, PushOptions, push_image
from sagemaker_dist.packaging.source import source_tarball, upload_source

__all__ = [
    "FRAMEWORKS",
    "ImageFacts",
    "ImageOptions",
    "PushOptions",
    "PushedImage",
    "account_of",
    "boto_session",
    "build_image",
    "check_versions",
    "default_tag",
    "ecr_image",
    "inspect_image",
    "is_ours",
    "local_image",
    "push_image",
    "role_arn",
    "source_tarball",
    "upload_source",
]
