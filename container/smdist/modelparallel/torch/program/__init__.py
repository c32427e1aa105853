# SPDX-License-Identifier: Apache-2.0
"""Forward pass of a model as data: calls, nested values, modes, batches and marks."""
