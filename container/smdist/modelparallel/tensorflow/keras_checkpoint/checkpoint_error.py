# SPDX-License-Identifier: Apache-2.0
"""Error of a checkpoint of a split Keras model."""

from __future__ import annotations

from sagemaker_dist.errors import OptionError


class KerasCheckpointError(OptionError):
    """Error of a file that cannot be written, or that cannot be loaded into a model."""
