# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the idle time of pipeline ranks against theory; see README.md."""
