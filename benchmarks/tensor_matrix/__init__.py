# SPDX-License-Identifier: Apache-2.0
"""Matrix of models whose layers are split over ranks; writes docs/tensor_models.md."""
