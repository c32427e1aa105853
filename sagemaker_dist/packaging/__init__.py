# SPDX-License-Identifier: Apache-2.0
"""Training images (build, inspect, push), the Docker engine, upload of code, and AWS sessions."""

from sagemaker_dist.packaging.aws_session import account_of, boto_session, role_arn
from sagemaker_dist.packaging.code_tarball import digest_of, source_tarball, upload_source
from sagemaker_dist.packaging.ecr import ecr_image
from sagemaker_dist.packaging.frameworks import FRAMEWORKS, default_tag, is_sagemaker_dist_image
from sagemaker_dist.packaging.gpu_faults import remote_gpu_faults
from sagemaker_dist.packaging.image_build import build_image
from sagemaker_dist.packaging.image_facts import (
    ImageFacts,
    check_versions,
    inspect_image,
    local_image,
)
from sagemaker_dist.packaging.image_options import ImageOptions
from sagemaker_dist.packaging.image_push import PushedImage, PushOptions, push_image
from sagemaker_dist.packaging.uploaded_secret import upload_secret

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
    "digest_of",
    "ecr_image",
    "inspect_image",
    "is_sagemaker_dist_image",
    "local_image",
    "push_image",
    "remote_gpu_faults",
    "role_arn",
    "source_tarball",
    "upload_secret",
    "upload_source",
]
