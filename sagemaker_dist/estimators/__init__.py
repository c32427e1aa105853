# SPDX-License-Identifier: Apache-2.0
"""Estimators of SageMaker's Python SDK v2 that know our distribution.

This room alone imports sagemaker. It looks for the SDK first, so that a user
without it, or with a version that has no Estimators, reads what to install.
"""

from sagemaker_dist.estimators.sdk import check_sdk, offline, own_tracebacks, quiet

check_sdk()
with quiet(), offline(), own_tracebacks():
    import sagemaker as sagemaker
