# SPDX-License-Identifier: Apache-2.0
"""Comparison of the results of a split model and of the whole model: `smp.verify`."""
