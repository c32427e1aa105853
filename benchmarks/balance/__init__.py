# SPDX-License-Identifier: Apache-2.0
"""Benchmark of how evenly partitioning methods load the stages of a pipeline; see README.md."""
