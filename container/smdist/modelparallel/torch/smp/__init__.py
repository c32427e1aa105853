# SPDX-License-Identifier: Apache-2.0
"""Functions and classes of AWS's model parallel library SMP v1, under its names (`smp.*`)."""
