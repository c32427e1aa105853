# SPDX-License-Identifier: Apache-2.0
"""Forward pass of a model as data: recorded calls, nested arguments and batches.

Also contains `smp.partition` and `smp.set_partition`, which assign modules to stages by hand.
"""
