# SPDX-License-Identifier: Apache-2.0
"""Values that are left open: variables of a SageMaker pipeline, known by their form alone."""


def is_open(value: object) -> bool:
    """Whether only a pipeline of SageMaker's SDK will know the value."""
    return hasattr(value, "expr")
