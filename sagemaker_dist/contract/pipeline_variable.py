# SPDX-License-Identifier: Apache-2.0
"""Detection of SageMaker pipeline variables, whose values are unknown until the pipeline runs."""


def is_open(value: object) -> bool:
    """Return whether a value is a pipeline variable of SageMaker's SDK."""
    return hasattr(value, "expr")
