# SPDX-License-Identifier: Apache-2.0
"""Forward pass of a model as data: recorded calls, nested arguments, batches, stages by hand."""
