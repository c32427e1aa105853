# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the memory of each pipeline rank against theory; see README.md."""
