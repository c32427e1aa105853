# SPDX-License-Identifier: Apache-2.0
"""Comparison of a split model with the whole one: `smp.verify`."""
