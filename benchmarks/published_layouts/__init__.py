# SPDX-License-Identifier: Apache-2.0
"""Comparison of predicted layouts with those that others ran and published; see README.md."""
