# SPDX-License-Identifier: Apache-2.0
"""Estimators of SageMaker's Python SDK v2 with the distributions and local modes of sagemaker-dist.

Only this package and `trainer` import SageMaker's SDK. The import of this package first checks the
SDK's version. If the SDK is missing or has no Estimators, the error names what to install.
"""

from sagemaker_dist.estimators.sagemaker_sdk import check_sdk, offline, own_tracebacks, quiet

check_sdk()
with quiet(), offline(), own_tracebacks():
    import sagemaker as sagemaker
