# SPDX-License-Identifier: Apache-2.0
"""Benchmark of how evenly Keras models are cut into stages; see README.md."""
