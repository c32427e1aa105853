# SPDX-License-Identifier: Apache-2.0
"""Steps of fit, evaluate and predict: agreement of the ranks, one batch, its logs, and errors."""
