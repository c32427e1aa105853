# SPDX-License-Identifier: Apache-2.0
"""Data parallelism for PyTorch and TensorFlow, both on the same compiled all-reduce engine."""
