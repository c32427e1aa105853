# SPDX-License-Identifier: Apache-2.0
"""Our package imports SageMaker's SDK first, and so without its advice to leave version 2."""

import sagemaker_dist.estimators  # noqa: F401 - for what the import does
