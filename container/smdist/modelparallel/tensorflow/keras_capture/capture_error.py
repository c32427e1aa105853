# SPDX-License-Identifier: Apache-2.0
"""Error of a Keras model that cannot be recorded as a sequence of layers."""

from __future__ import annotations

from sagemaker_dist.errors import OptionError


class KerasCaptureError(OptionError):
    """Error of a Keras model, or of one layer, that cannot be split over stages."""
