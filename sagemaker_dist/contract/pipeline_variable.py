# SPDX-License-Identifier: Apache-2.0
"""Detection of SageMaker pipeline variables, whose values are unknown until the pipeline runs."""


def is_pipeline_variable(value: object) -> bool:
    """Return whether a value is a pipeline variable of SageMaker's SDK.

    Such a variable, for example a parameter of a SageMaker pipeline, gets its value only when the
    pipeline runs.
    """
    return hasattr(value, "expr")
