# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a Keras model in two stages against one process and every cut by hand."""
